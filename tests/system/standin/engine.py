"""Find a container engine, or start one of our own and take it away again without a trace.

A daemon started here has its own socket, state folder and process group: a user's containers with a
restart policy stay as they are. Only its image cache outlives it, so that the second run is quick.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .docker import Docker, EngineError, call, last_lines

#: Images and layers; kept between runs. Under /var/lib, since overlay2 wants a real disk file system.
CACHE = Path("/var/lib/llmgw-system-test")
#: Socket, pid and containers' state; gone with the daemon.
RUN = Path("/run/llmgw-system-test")
#: A cold dockerd answers in 1–3 s here; the rest is for a busy machine.
START_S = 60.0
STOP_S = 30.0
PACKAGES = ("docker.io", "debootstrap")
#: What dockerd writes into the host's packet filter; nothing else is ever taken back.
OURS = re.compile(r"\bDOCKER\b|DOCKER-|docker0|\bbr-[0-9a-f]{12}\b")


@contextmanager
def engine(log_dir: Path) -> Iterator[Docker]:
    """An engine that answers: the user's if one does, else a daemon of our own until the block ends.

    Raises `EngineError` when neither can be had. The daemon's log lies in `log_dir`/dockerd.log.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    install_missing()
    present = Docker()
    if present.answers():
        yield present
        return
    if os.geteuid() != 0:
        raise EngineError(
            "no container engine answers; start Docker, or run this as root to have one started"
        )
    with _daemon(log_dir / "dockerd.log") as own:
        yield own


def install_missing() -> None:
    """Install Docker and debootstrap from Debian where they are missing; only as root, only with apt."""
    missing = [
        name for name, program in zip(PACKAGES, ("docker", "debootstrap"), strict=True) if not _has(program)
    ]
    if not _has("dockerd") and not Docker().answers() and "docker.io" not in missing:
        missing.append("docker.io")
    if not missing:
        return
    if os.geteuid() != 0 or not _has("apt-get"):
        if "docker.io" in missing:
            raise EngineError(
                "no container engine is installed; try: sudo apt-get install docker.io debootstrap"
            )
        return  # An engine is there; debootstrap is wanted only if a base image is missing, and bases.py says so.
    print(f"engine: installing {' '.join(missing)}", flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    call(["apt-get", "update", "-qq"], timeout_s=180, env=env)
    lock_wait = "DPkg::Lock::Timeout=120"
    call(
        ["apt-get", "-o", lock_wait, "install", "-y", "--no-install-recommends", *missing],
        timeout_s=420,
        env=env,
    )


@contextmanager
def _daemon(log: Path) -> Iterator[Docker]:
    if not _has("dockerd"):
        raise EngineError(
            "no container engine answers and dockerd is not installed; try: apt-get install docker.io"
        )
    _stop_stale()
    RUN.mkdir(parents=True, exist_ok=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    # A file of its own, so that the settings of a daemon installed here do not leak in.
    (RUN / "daemon.json").write_text("{}")
    docker = Docker(host=f"unix://{RUN}/docker.sock")
    before = _filter_rules()
    forward_before = Path("/proc/sys/net/ipv4/ip_forward").read_text()
    with log.open("wb") as sink:
        process = subprocess.Popen(
            ["dockerd", *_options()],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    try:
        _wait_until_up(docker, process, log)
        print(f"engine: dockerd started, pid {process.pid}, log {log}", flush=True)
        yield docker
    finally:
        _stop(process)
        _restore(before, forward_before)
        print("engine: dockerd stopped, packet filter as it was", flush=True)


def _options() -> list[str]:
    return [
        f"--host=unix://{RUN}/docker.sock",
        f"--data-root={CACHE}/data",
        f"--exec-root={RUN}/exec",
        f"--pidfile={RUN}/docker.pid",
        f"--config-file={RUN}/daemon.json",
        # A host link below 1500 bytes would swallow the large packets of a download through docker0.
        f"--mtu={_host_mtu()}",
        # Containers that a crashed run left must not come back with the daemon.
        "--live-restore=false",
    ]


def _host_mtu() -> int:
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        name, destination = line.split()[:2]
        if destination == "00000000":
            return int(Path(f"/sys/class/net/{name}/mtu").read_text())
    return 1500


def _wait_until_up(docker: Docker, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise EngineError(
                f"dockerd ended with {process.returncode}; its last lines:\n{last_lines(log.read_bytes())}"
            )
        if (RUN / "docker.sock").exists() and docker.answers():
            return
        time.sleep(0.2)
    raise EngineError(
        f"dockerd did not answer within {START_S:g} s; its last lines:\n{last_lines(log.read_bytes())}"
    )


def _stop_stale() -> None:
    """End the daemon of a run that was killed: by its recorded pid, only if that is a dockerd of ours."""
    try:
        pid = int((RUN / "docker.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return
    if b"dockerd" not in command or str(RUN).encode() not in command:
        return
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            raise EngineError(f"an earlier dockerd of these tests, pid {pid}, does not stop; end it by hand")
        time.sleep(0.1)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            # It is a session of its own, so its containerd and shims go with it.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_S)
    # A daemon that ends leaves its own mounts only when it was killed; busy ones are left for the next start.
    shutil.rmtree(RUN, ignore_errors=True)


def _filter_rules() -> dict[tuple[str, str], list[str]]:
    rules: dict[tuple[str, str], list[str]] = {}
    for program in ("iptables", "ip6tables"):
        for table in ("filter", "nat"):
            try:
                rules[program, table] = call(
                    [program, "-w", "5", "-t", table, "-S"], timeout_s=15
                ).splitlines()
            except EngineError:
                continue  # No such table in this kernel: nothing can have been added to it either.
    return rules


def _restore(before: dict[tuple[str, str], list[str]], forward_before: str) -> None:
    """Take back what appeared in the packet filter since `before` and is Docker's; others' rules stay."""
    for (program, table), now in _filter_rules().items():
        old = before.get((program, table), [])
        new = [rule for rule in now if rule not in old and OURS.search(rule)]
        edit = [program, "-w", "5", "-t", table]
        for rule in new:
            if rule.startswith("-A "):
                call([*edit, "-D", *rule.split()[1:]], timeout_s=15)
        for rule in new:
            if rule.startswith("-N "):
                call([*edit, "-X", rule.split()[1]], timeout_s=15)
        for rule in old:
            if rule.startswith("-P FORWARD ") and rule not in now:
                call([*edit, *rule.split()], timeout_s=15)
    if "docker0" in os.listdir("/sys/class/net"):
        call(["ip", "link", "delete", "docker0"], timeout_s=15)
    Path("/proc/sys/net/ipv4/ip_forward").write_text(forward_before)


def _has(program: str) -> bool:
    return shutil.which(program) is not None
