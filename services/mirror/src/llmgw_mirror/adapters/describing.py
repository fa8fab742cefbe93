"""What a version's files say of its model, read from the store: the beginning of a GGUF file, or two small
JSON files. Blocks; run it in DiskThreads."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmgw_mirror.core.described import Described, from_config, from_gguf
from llmgw_mirror.core.gguf import NotGguf, read_metadata
from llmgw_mirror.core.suggest import Chosen
from llmgw_mirror.core.versions import VersionView

#: config.json has some kilobytes, tokenizer_config.json with its added tokens up to a megabyte or two.
JSON_MOST_BYTES = 16 * 1024 * 1024
#: Reaches behind the vocabulary of every model known, where the chat template stands.
GGUF_READ_BYTES = 48 * 1024 * 1024

TEMPLATES = ("chat_template.jinja", "chat_template.json")


def describe(
    view: VersionView, chosen: Chosen, content: Callable[[str], Path]
) -> tuple[Described, str | None]:
    """What is said, and why something that should say it could not be read."""
    held = {file.source.path: content(file.sha256) for file in view.files if file.sha256 is not None}
    if chosen.entry is not None:
        return _gguf(chosen.entry, held[chosen.entry])
    config, why = _json("config.json", held)
    if config is None:
        return Described(), why
    tokenizer, _ = _json("tokenizer_config.json", held)
    read = ("config.json", *(("tokenizer_config.json",) if tokenizer is not None else ()))
    template = any(name in held for name in TEMPLATES)
    return from_config(config, tokenizer=tokenizer, template_file=template, read_from=read), None


def _gguf(path: str, file: Path) -> tuple[Described, str | None]:
    try:
        with file.open("rb") as opened:
            found = read_metadata(opened.read(GGUF_READ_BYTES))
    except NotGguf as e:
        return Described(), f"{path} could not be read: {e}"
    return from_gguf(found.pairs, path=path, whole=found.whole), None


def _json(name: str, held: dict[str, Path]) -> tuple[dict[str, Any] | None, str | None]:
    """None where it is not there or no JSON object."""
    if name not in held:
        return None, f"{name} is not among its files"
    try:
        with held[name].open("rb") as opened:
            data = opened.read(JSON_MOST_BYTES + 1)
        if len(data) > JSON_MOST_BYTES:
            return None, f"{name} is too large to be what its name says"
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None, f"{name} is no JSON"
    return (value, None) if isinstance(value, dict) else (None, f"{name} holds no names and values")
