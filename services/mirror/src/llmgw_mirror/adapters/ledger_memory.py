"""The ledger of a mirror without Postgres: leases among its own tasks, records until it ends.

What must survive lies in the store's own files; after a restart the records are written anew from them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llmgw_kit.clock import Clock
from llmgw_mirror.core.versions import Moving, VersionView, WeightsState
from llmgw_mirror.ports import Lease, LeaseView, RecordedFile, RecordedVersion


@dataclass
class _Held:
    holder: str
    token: int
    expires_at: float
    moving: Moving


@dataclass
class Board:
    """What several memory ledgers share, as several mirrors would share a database."""

    leases: dict[str, _Held] = field(default_factory=dict)
    records: dict[tuple[str, str], RecordedVersion] = field(default_factory=dict)
    last_token: int = 0


class MemoryLedger:
    """See ports.Ledger."""

    def __init__(self, *, holder: str, clock: Clock, board: Board | None = None) -> None:
        self.holder = holder
        self._clock = clock
        self._board = board or Board()

    async def acquire(self, key: str, *, ttl_s: float) -> Lease | None:
        now, held = self._clock.monotonic_s(), self._board.leases.get(key)
        if held is not None and held.expires_at > now and held.holder != self.holder:
            return None
        self._board.last_token += 1
        token = self._board.last_token
        self._board.leases[key] = _Held(
            self.holder, token, now + ttl_s, Moving(WeightsState.FETCHING, 0, None)
        )
        return Lease(key, token)

    async def renew(self, lease: Lease, *, ttl_s: float, moving: Moving) -> bool:
        held = self._board.leases.get(lease.key)
        if held is None or held.token != lease.token:
            return False
        held.expires_at, held.moving = self._clock.monotonic_s() + ttl_s, moving
        return True

    async def release(self, lease: Lease) -> None:
        held = self._board.leases.get(lease.key)
        if held is not None and held.token == lease.token:
            del self._board.leases[lease.key]

    async def live(self) -> Mapping[str, LeaseView]:
        now = self._clock.monotonic_s()
        return {
            key: LeaseView(key, held.holder, held.moving)
            for key, held in self._board.leases.items()
            if held.expires_at > now
        }

    async def record(self, version: VersionView) -> None:
        self._board.records[version.model, version.version] = RecordedVersion(
            version.model,
            version.version,
            tuple(
                RecordedFile(f.source.path, f.state, f.sha256, f.published_bytes, f.error)
                for f in sorted(version.files, key=lambda file: file.source.path)
            ),
        )

    async def forget(self, model: str, version: str) -> None:
        self._board.records.pop((model, version), None)

    async def recorded(self) -> Sequence[RecordedVersion]:
        return [self._board.records[name] for name in sorted(self._board.records)]
