"""This machine: its address, its folders, what it can run."""

import fcntl
import importlib.metadata
import importlib.util
import ipaddress
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil

from llmgw_agent.adapters import procfs
from llmgw_agent.adapters.files import read_json, write_json, write_whole
from llmgw_kit.addresses import HostPort
from llmgw_kit.errors import StartupError

log = logging.getLogger(__name__)

#: How long another Python may take to say whether it has a module.
IMPORT_CHECK_S = 20.0


class DataFolder:
    """The agent's folder, held by one agent at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.journal = root / "journal"
        self.weights = root / "weights"
        self.logs = root / "logs"
        self.state = root / "state"
        self.run = root / "run"
        self._lock: int | None = None

    def open(self) -> None:
        """Create what is missing and take the lock.

        Raises StartupError when it cannot be written or another agent has it."""
        try:
            for folder in (self.journal, self.weights, self.logs, self.state, self.run):
                folder.mkdir(parents=True, exist_ok=True)
            os.chmod(self.journal, 0o700)  # specs hold credentials
            lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise StartupError(
                f"the data folder {self.root} cannot be used: {e.strerror}",
                next_steps=["give the agent a folder of its own with --data-dir, writable for its user"],
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise StartupError(
                f"another agent uses the data folder {self.root}",
                next_steps=["stop it, or give this one its own with --data-dir"],
            ) from None
        self._lock = lock

    def close(self) -> None:
        """Let the lock go."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def owner_id(self) -> str:
        """Random name of this folder, made once: by it engines of this agent are told from another's."""
        path = self.state / "owner"
        try:
            return path.read_text().strip()
        except FileNotFoundError:
            write_whole(path, f"{secrets.token_hex(8)}\n".encode())
            return path.read_text().strip()

    def highest_term(self) -> int | None:
        """The highest lease term seen by any agent of this folder; None when none was."""
        try:
            told = read_json(self.state / "term.json")
            return int(told["term"]) if told is not None else None
        except (ValueError, KeyError, TypeError) as e:
            log.error("%s cannot be read: %s; terms count from now", self.state / "term.json", e)
            return None

    def remember_term(self, term: int) -> None:
        """Keep it over restarts."""
        try:
            write_json(self.state / "term.json", {"term": term})
        except OSError as e:
            log.error("term %d cannot be noted: %s", term, e)

    def write_listeners(self, admin: HostPort, metrics: HostPort | None) -> None:
        """Where this agent really listens, for `healthcheck`. Raises OSError."""
        write_json(
            self.state / "listeners.json",
            {"admin": str(admin), "metrics": None if metrics is None else str(metrics), "pid": os.getpid()},
        )

    def listeners(self) -> dict[str, str | int | None]:
        """What the running agent wrote. Raises StartupError when there is none."""
        try:
            told: dict[str, str | int | None] | None = read_json(self.state / "listeners.json")
        except (OSError, ValueError) as e:
            raise StartupError(f"{self.state / 'listeners.json'} cannot be read: {e}") from None
        if told is None:
            raise StartupError(f"no agent has started on {self.root} yet", next_steps=["check --data-dir"])
        return told

    def disk(self) -> tuple[int | None, int | None]:
        """Bytes in all and free; None when the file system does not say."""
        try:
            usage = shutil.disk_usage(self.root)
        except OSError:
            return None, None
        return usage.total, usage.free


def management_address(interface: str | None, address: str | None) -> str:
    """What routers reach this node's engines by. Raises StartupError for an interface without one."""
    if address is not None:
        return address
    found = psutil.net_if_addrs()
    if interface is not None:
        if interface not in found:
            raise StartupError(
                f"there is no network interface {interface!r}",
                next_steps=[f"management_interface is one of: {', '.join(sorted(found))}"],
            )
        candidates = [interface]
    else:
        up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
        candidates = [name for name in found if name in up]
    for family in (socket.AF_INET, socket.AF_INET6):
        for name in candidates:
            for one in found[name]:
                if one.family == family and _usable(one.address, loopback=interface is not None):
                    return one.address
    if interface is not None:
        raise StartupError(f"network interface {interface!r} has no address")
    log.warning("this machine has no address but loopback: engines are reachable from this machine only")
    return "127.0.0.1"


def _usable(text: str, *, loopback: bool) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    return not address.is_link_local and (loopback or not address.is_loopback)


def listen_host(engine_listen: str | None, management: str) -> str:
    """Where engines listen: only where they are advertised, if that is an address of this machine."""
    if engine_listen is not None:
        return engine_listen
    try:
        ipaddress.ip_address(management)
    except ValueError:
        return "0.0.0.0"
    return management


def connect_host(listen: str) -> str:
    """Where this agent reaches its own engines."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen, listen)


def check_engine_ports(first: int, last: int) -> None:
    """Raises StartupError when the kernel hands the same ports to outgoing connections: any client on
    this machine, the agent included, could then sit on a port an engine was promised."""
    ephemeral = procfs.ephemeral_ports()
    if ephemeral is None:
        return
    low, high = ephemeral
    if first <= high and low <= last:
        raise StartupError(
            f"engine ports {first}-{last} overlap the kernel's ephemeral range {low}-{high}",
            next_steps=[
                f"set engine_ports below {low}, for example 20000-24999",
                f"or move the kernel's: sysctl net.ipv4.ip_local_port_range='{last + 1} 65535'",
            ],
        )


def engines_here(llamacpp_python: str, vllm_program: str, sglang_python: str) -> tuple[str, ...]:
    """Engines this machine can start."""
    found = []
    if _has_module(llamacpp_python, "xllamacpp"):
        found.append("llamacpp")
    if shutil.which(vllm_program):
        found.append("vllm")
    if _has_module(sglang_python, "sglang"):
        found.append("sglang")
    return (*found, "command")


def _has_module(python: str, module: str) -> bool:
    if python == sys.executable:
        return importlib.util.find_spec(module) is not None
    if not shutil.which(python):
        return False
    check = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        done = subprocess.run(
            [python, "-c", check], capture_output=True, timeout=IMPORT_CHECK_S, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        log.warning("%s does not say whether it has %s: %s", python, module, e)
        return False
    return done.returncode == 0


def package_version(python: str, package: str) -> str | None:
    """Of a package as that Python has it now. Blocking, a moment; None when it does not tell."""
    if python == sys.executable:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None
    ask = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    try:
        done = subprocess.run(
            [python, "-c", ask], capture_output=True, text=True, timeout=IMPORT_CHECK_S, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        log.warning("%s does not say which %s it has: %s", python, package, e)
        return None
    return done.stdout.strip() or None
