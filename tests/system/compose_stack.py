"""The compose stack of deploy/ as the system tests drive it: up, look inside, break a part, down again."""

import importlib.util
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from standin.bases import ensure_bases
from standin.docker import Docker, EngineError, call
from standin.engine import engine

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = ROOT / "deploy" / "compose.yaml"
#: Kept between runs: the logs of the last one, and the models, which are the same bytes each time.
WORK = ROOT / ".build" / "system"
#: Four images on two busy cores with an empty cache took 150 s.
BUILD_S = 1200.0
#: `up --wait` of the whole stack: 20–30 s with cached images.
UP_S = 300.0
DOWN_S = 120.0
#: Who asks whom inside the stack.
CONTROLLERS = ("controller-1", "controller-2")
AGENTS = ("agent-1", "agent-2")
SERVICES = (*CONTROLLERS, "router", "mirror", *AGENTS)

#: Lists the processes of a container from its /proc; the images hold no ps.
LIST_PROCESSES = """
import json, os
found = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        stat = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
        argv = open(f"/proc/{pid}/cmdline").read().split(chr(0))[:-1]
    except OSError:
        continue
    found.append({"pid": int(pid), "parent": int(stat[1]), "started_ticks": int(stat[19]), "argv": argv})
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Process:
    """One process as its container sees it; pid and start time together name it for good."""

    pid: int
    #: Not compared: an engine whose agent died has a new one and is the same process.
    parent: int = field(compare=False)
    started_ticks: int
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Stack:
    """One running project of compose.yaml."""

    docker: Docker
    project: str
    publish: str

    @property
    def url(self) -> str:
        """Where the router's client port is published."""
        return f"http://{self.publish}"

    def compose(self, *words: str, timeout_s: float = 60) -> str:
        """Run `docker compose WORDS…` on this project."""
        # The binary inside the package: the script that the package puts into bin/ drops the exit status.
        package = importlib.util.find_spec("compose")
        assert package is not None and package.origin is not None, "no Compose; try: make setup"
        program = Path(package.origin).with_name("docker-compose")
        head: list[str | Path] = [program, "-f", COMPOSE_FILE, "-p", self.project, "--progress", "plain"]
        return call([*head, *words], timeout_s=timeout_s, env=self.docker.env, cwd=ROOT)

    def container(self, service: str) -> str:
        """The id of a service's one container, running or not."""
        found = self.compose("ps", "--all", "--quiet", service).split()
        assert len(found) == 1, f"{service} has {len(found)} containers, expected one"
        return found[0]

    def inspect(self, service: str) -> dict[str, Any]:
        """What the engine knows of a service's container."""
        found: list[dict[str, Any]] = json.loads(self.docker("inspect", self.container(service)))
        return found[0]

    def execute(self, service: str, *words: str, timeout_s: float = 30) -> str:
        """Run a program inside a service's container, as its own user."""
        return self.docker("exec", self.container(service), *words, timeout_s=timeout_s)

    def processes(self, service: str) -> tuple[Process, ...]:
        """What runs in a service's container, by pid."""
        rows = json.loads(self.execute(service, "python", "-c", LIST_PROCESSES))
        rows.sort(key=lambda row: row["pid"])
        return tuple(
            Process(row["pid"], row["parent"], row["started_ticks"], tuple(row["argv"])) for row in rows
        )

    def ctl(self, *words: str, through: str = "controller-1", asking: Sequence[str] = CONTROLLERS) -> Any:
        """What `llmgwctl --output json WORDS…` prints, run in the container of one controller."""
        addresses = ",".join(f"{name}:7070" for name in asking)
        # 0 fine, 1 trouble found: both are answers.
        script = 'llmgwctl "$@" || [ $? -eq 1 ]'
        command = ("sh", "-c", script, "sh", "--controller", addresses, "--output", "json", *words)
        return json.loads(self.execute(through, *command))

    def up(self) -> None:
        """Build what changed and start everything; returns when every healthcheck is green."""
        self.compose("build", timeout_s=BUILD_S)
        self.compose("up", "-d", "--wait", "--wait-timeout", str(int(UP_S)), timeout_s=UP_S + 60)

    def down(self) -> None:
        """Remove containers, networks and volumes of this project."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5", timeout_s=DOWN_S)

    def tell_logs(self, lines: int = 200) -> None:
        """Print how every container stands and the end of what they said; the log folder gets it all."""
        folder = WORK / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        logs = self.compose("logs", "--no-color", timeout_s=120)
        (folder / "logs.txt").write_text(logs)
        print(self.compose("ps", "--all"))
        # By time, not by container: the services put it first in each line, after Compose's own prefix.
        print("\n".join(sorted(logs.splitlines(), key=lambda line: line.partition("| ")[2])[-lines:]))
        print(f"all of it: {folder / 'logs.txt'}")


@contextmanager
def running_stack() -> Iterator[Stack]:
    """Engine, base images, our images, the stack; all taken down again, whatever happens in between.

    Raises `EngineError` when this machine cannot give one: a missing engine is a failure, never a skip.
    """
    shutil.rmtree(WORK / "logs", ignore_errors=True)
    with engine(WORK / "logs") as docker:
        ensure_bases(docker)
        prepare = ROOT / "deploy" / "prepare.sh"
        env = {**os.environ, "PYTHON": sys.executable}
        call([prepare, WORK / "secrets", WORK / "models"], timeout_s=120, env=env)
        publish = f"127.0.0.1:{_free_port()}"
        settings = {
            "LLMGW_PUBLISH": publish,
            "LLMGW_SECRETS_DIR": str(WORK / "secrets"),
            "LLMGW_MODELS_DIR": str(WORK / "models"),
            "LLMGW_TAG": "system-test",
            # The engine's own builder: Compose would look for a buildx plugin otherwise.
            "COMPOSE_BAKE": "false",
        }
        stack = Stack(Docker(docker.host, settings), "llmgw-system-test", publish)
        try:
            stack.down()  # What a run that was killed has left.
            stack.up()
            yield stack
        except EngineError:
            # `up --wait` failed: the containers know why, and are about to go.
            stack.tell_logs()
            raise
        finally:
            stack.down()
            if docker.host is not None:
                # Our own daemon keeps its cache; unbounded, it would grow with each change of the code.
                docker("image", "prune", "--force", timeout_s=DOWN_S)
                docker("builder", "prune", "--force", "--keep-storage", "4GB", timeout_s=DOWN_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
