"""What the owner of a shard needs from outside, in one place."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from llmgw_agent.engines.base import Surroundings
from llmgw_agent.ports import (
    DeviceProvider,
    EngineHttp,
    EngineLauncher,
    JournalLike,
    LoadLike,
    LogLike,
    WeightsLike,
)
from llmgw_kit.clock import Clock


@dataclass(frozen=True)
class World:
    """Ports and values; nothing in here changes while the agent runs."""

    clock: Clock
    journal: JournalLike
    launcher: EngineLauncher
    weights: WeightsLike
    devices: DeviceProvider
    http: EngineHttp
    load: LoadLike
    #: The log at a path.
    log_file: Callable[[Path], LogLike]
    #: Draws a token nobody can guess.
    new_token: Callable[[], str]
    surroundings: Surroundings
    #: Host this agent reaches its own engines at.
    connect_host: str
    node_id: str
    #: Names the data folder; see core/marks.py.
    owner_id: str
    #: What every engine inherits.
    base_env: Mapping[str, str]
    log_folder: Path
    run_folder: Path
    #: Seconds between two beats, as the controller said last.
    beat_interval_s: Callable[[], float]
    #: Seconds without a sign of work before an engine is asked one real request again.
    probe_interval_s: float
    #: Version of an engine's program as installed, for one that does not tell its own; blocking.
    installed: Callable[[str], str | None]


class ShardFailed(Exception):
    """The shard cannot go on: an exit reason and its text."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text
