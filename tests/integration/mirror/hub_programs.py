"""The Hub's real clients, three generations of them, as programs against a mirror on loopback."""

import asyncio
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("hub_client.py")
#: For one act of a client, its start included, on a machine where everything else is being tested at once.
PATIENCE_S = 100.0
#: What the environments hold; `make hub-clients` makes them.
GENERATIONS = {2: "2.4.0", 1: "1.0.1", 0: "0.36.0"}


@dataclass
class HubClient:
    """One generation, with a cache of its own."""

    generation: int
    endpoint: str
    home: Path
    environment: dict[str, str] = field(default_factory=dict)

    def program(self, name: str) -> Path:
        found = ROOT / f".venv-hub-{self.generation}" / "bin" / name
        assert found.exists(), f"{found} is missing: make hub-clients"
        return found

    async def run(
        self, *argv: str | Path, patience_s: float = PATIENCE_S, **environment: str
    ) -> tuple[int, str, str]:
        """Exit code, stdout and stderr. Nothing of this machine's own settings reaches the client."""
        given = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "HF_HOME": str(self.home / "hf"),
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_COLOR": "1",
        }
        self.home.mkdir(parents=True, exist_ok=True)
        child = await asyncio.create_subprocess_exec(
            *map(str, argv), env=given | self.environment | environment, cwd=self.home,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(patience_s):
                out, err = await child.communicate()
        except BaseException:
            child.kill()
            await child.wait()
            raise
        assert child.returncode is not None
        return child.returncode, out.decode(), err.decode()

    async def act(self, act: str, *, environment: dict[str, str] | None = None, **asked: Any) -> Any:
        """What the client makes of it. See hub_client.py."""
        said = await self.told(act, environment=environment, **asked)
        assert "result" in said, said
        return said["result"]

    async def told(
        self, act: str, *, environment: dict[str, str] | None = None, **asked: Any
    ) -> dict[str, Any]:
        """The same, where it may end in an exception."""
        code, out, err = await self.run(
            self.program("python"), SCRIPT, json.dumps({"act": act, **asked}), **(environment or {})
        )
        assert code == 0, err
        said: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return said

    async def refused(self, act: str, **asked: Any) -> tuple[str, str]:
        """The exception and everything that it and its causes say."""
        said = await self.told(act, **asked)
        assert "error" in said, said
        return said["error"], "\n".join([said["text"], *(text for _, text in said["causes"])])

    def cached(self, pattern: str) -> list[Path]:
        """Files of the client's cache."""
        return sorted(path for path in (self.home / "hf").rglob(pattern) if path.is_file())
