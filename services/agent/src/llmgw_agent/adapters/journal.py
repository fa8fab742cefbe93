"""The agent's memory: one file a shard, written before the world is changed, and after.

A restarted agent knows from here what it started. A file that cannot be read is set aside and told,
never guessed at.
"""

import logging
from pathlib import Path
from typing import Any

from llmgw_agent.adapters.files import read_json, remove_file, write_json
from llmgw_agent.core.paths import folder_name
from llmgw_agent.core.shard import Exit, ProcessIdentity, Shard, ShardState
from llmgw_agent.core.spec import spec_from_plain, spec_to_plain
from llmgw_kit.ids import DeviceId, ShardId

log = logging.getLogger(__name__)

FORMAT = 1


class Journal:
    """Blocking and small: a write is a few kilobytes and two syncs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, shard_id: ShardId) -> Path:
        return self.folder / f"{folder_name(shard_id, what='shard id')}.json"

    def write(self, shard: Shard) -> None:
        """Raises OSError: a shard whose note cannot be written must not be launched."""
        write_json(self._path(shard.spec.shard_id), _to_plain(shard))

    def forget(self, shard_id: ShardId) -> None:
        """Raises OSError."""
        remove_file(self._path(shard_id))

    def read(self) -> dict[ShardId, Shard]:
        """All shards, in order of id."""
        found: dict[ShardId, Shard] = {}
        for path in sorted(self.folder.glob("*.json")):
            try:
                shard = _from_plain(read_json(path))
            except (ValueError, TypeError, KeyError) as e:
                aside = path.with_suffix(".unreadable")
                log.error(
                    "journal %s cannot be read (%s: %s); set aside as %s",
                    path,
                    type(e).__name__,
                    e,
                    aside.name,
                )
                path.rename(aside)
                continue
            found[shard.spec.shard_id] = shard
        return found


def _to_plain(shard: Shard) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "spec": spec_to_plain(shard.spec),
        "state": shard.state.value,
        "token": shard.token,
        "process": vars(shard.process) if shard.process else None,
        "exit": vars(shard.exit) if shard.exit else None,
        "probed": shard.probed,
        "fetch_s": shard.fetch_s,
        "load_s": shard.load_s,
        "warm_up_s": shard.warm_up_s,
        "engine_version": shard.engine_version,
        "memory_used": dict(shard.memory_used),
        "launched_unix_s": shard.launched_unix_s,
        "log_path": shard.log_path,
        "stop_reason": shard.stop_reason,
        "story": list(shard.story),
    }


def _from_plain(plain: dict[str, Any]) -> Shard:
    if plain["format"] != FORMAT:
        raise ValueError(f"its format is {plain['format']}, ours {FORMAT}")
    return Shard(
        spec=spec_from_plain(plain["spec"]),
        state=ShardState(plain["state"]),
        token=plain["token"],
        process=ProcessIdentity(**plain["process"]) if plain["process"] else None,
        exit=Exit(**plain["exit"]) if plain["exit"] else None,
        probed=plain["probed"],
        load_s=plain["load_s"],
        # Absent in what a release before this one wrote.
        fetch_s=plain.get("fetch_s"),
        warm_up_s=plain.get("warm_up_s"),
        engine_version=plain.get("engine_version"),
        memory_used=tuple(
            sorted((DeviceId(name), int(size)) for name, size in plain.get("memory_used", {}).items())
        ),
        launched_unix_s=plain["launched_unix_s"],
        log_path=plain["log_path"],
        stop_reason=plain["stop_reason"],
        story=tuple(plain["story"]),
    )
