"""Find a container engine, or start one of our own and take it away again without a trace.

A daemon started here has its own socket, state folder and process group: a user's containers with a
restart policy stay as they are. Only its image cache outlives it, so that the second run is quick.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .docker import Docker, EngineError, call, last_lines
from .host_network import HostNetwork

#: Images and layers; kept between runs. Under /var/lib, since overlay2 wants a real disk file system.
CACHE = Path("/var/lib/llmgw-system-test")
#: Socket, pid and containers' state; gone with the daemon.
RUN = Path("/run/llmgw-system-test")
BEFORE = RUN / "host-network.json"
#: A cold dockerd answers in 1–3 s here; the rest is for a busy machine.
START_S = 60.0
STOP_S = 30.0
#: <linux/prctl.h>
PR_SET_PDEATHSIG = 1
PACKAGES = ("docker.io", "debootstrap")


@contextmanager
def engine(log_dir: Path) -> Iterator[Docker]:
    """An engine that answers: the user's if one does, else a daemon of our own until the block ends.

    Raises `EngineError` when neither can be had. The daemon's log lies in `log_dir`/dockerd.log.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    install_missing()
    present = Docker()
    if present.answers():
        with _ended_by_sigterm_as_by_ctrl_c():
            yield present
        return
    if os.geteuid() != 0:
        raise EngineError(
            "no container engine answers; start Docker, or run this as root to have one started"
        )
    with _ended_by_sigterm_as_by_ctrl_c(), _daemon(log_dir / "dockerd.log") as own:
        yield own


@contextmanager
def _ended_by_sigterm_as_by_ctrl_c() -> Iterator[None]:
    """A time limit around the tests sends SIGTERM, at which Python would leave without any clean-up."""

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
        # An engine is there; debootstrap is wanted only if a base image is missing, and bases.py says so.
        return
    print(f"engine: installing {' '.join(missing)}", flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        call(["apt-get", "update", "-qq"], timeout_s=300, env=env)
    except EngineError as err:
        # A third-party source that is gone fails the update and concerns us not; the installation decides.
        print(f"engine: {err}", flush=True)
    lock_wait = "DPkg::Lock::Timeout=120"
    call(
        ["apt-get", "-o", lock_wait, "install", "-y", "--no-install-recommends", *missing],
        timeout_s=600,
        env=env,
    )


@contextmanager
def _daemon(log: Path) -> Iterator[Docker]:
    if not _has("dockerd"):
        raise EngineError(
            "no container engine answers and dockerd is not installed; try: apt-get install docker.io"
        )
    _clear_stale()
    RUN.mkdir(parents=True, exist_ok=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    host = HostNetwork.read()
    # On disk too: if this process is killed, the next one knows what to put back.
    BEFORE.write_text(host.to_json())
    # A file of its own, so that the settings of a daemon installed here do not leak in.
    (RUN / "daemon.json").write_text("{}")
    docker = Docker(host=f"unix://{RUN}/docker.sock")
    with log.open("wb") as sink:
        process = subprocess.Popen(
            ["dockerd", *_options()],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    try:
        _wait_until_up(docker, process, log)
        print(f"engine: dockerd started, pid {process.pid}, log {log}", flush=True)
        yield docker
    finally:
        _stop(process)
        host.restore()
        shutil.rmtree(RUN, ignore_errors=True)
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


def _end_with_parent() -> None:
    """In the child, before the exec: a run that is killed takes its daemon, and so its containers, along."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _clear_stale() -> None:
    """Take away what a killed run left: its daemon (the recorded pid, only if that is ours), its rules."""
    if (pid := _stale_pid()) is not None:
        with suppress(ProcessLookupError):  # it ends by itself, perhaps just now
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while _stale_pid() is not None:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"an earlier dockerd of these tests, pid {pid}, does not stop; end it by hand"
                )
            time.sleep(0.1)
    if BEFORE.exists():
        HostNetwork.from_json(BEFORE.read_text()).restore()
        shutil.rmtree(RUN, ignore_errors=True)


def _stale_pid() -> int | None:
    try:
        pid = int((RUN / "docker.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    return pid if b"dockerd" in command and str(RUN).encode() in command else None


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            # It is a session of its own, so its containerd and shims go with it.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_S)


def _has(program: str) -> bool:
    return shutil.which(program) is not None
