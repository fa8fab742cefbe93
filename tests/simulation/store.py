"""The store and Redis as the simulation has them: the rows of the real core, a lease, one activity map."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from llmgw_controller.core.activity import Activity, ActivityMap, RouterReport
from llmgw_controller.core.apply import apply
from llmgw_controller.core.plan import Change
from llmgw_controller.core.rows import Stored
from llmgw_kit.ids import LeaseTerm, ReplicaId, RouterId
from tests.simulation.checks import Checks
from tests.simulation.rows import RowChecks
from tests.simulation.world import World

TTL_S = 10.0
MARGIN_S = 2.0
NO_TERM = LeaseTerm(0)
#: Redis's clock is another one than the database's, and a little fast.
REDIS_EPOCH = 1_000_000.0
REDIS_RATE = 1.0002


class Fenced(Exception):
    """The writer's term is over."""


@dataclass
class Store:
    world: World
    checks: Checks
    rows: RowChecks
    #: Off only to plant the bug.
    fence: bool = True
    stored: Stored = field(default_factory=Stored)
    holder: str | None = None
    term: LeaseTerm = NO_TERM
    expires_at: float = 0.0
    #: It answers nobody before.
    paused_until: float = 0.0
    #: What its wall clock shows beside the true time; a step of it is seen by the next term only.
    skew_s: float = 0.0

    @property
    def paused(self) -> bool:
        return self.world.now < self.paused_until

    def acquire(self, who: str) -> LeaseTerm | None:
        """Free or expired, or nobody's: the earlier life of the same holder counts as somebody."""
        if self.world.now < self.expires_at:
            return None
        self.holder, self.term = who, LeaseTerm(self.term + 1)
        self.expires_at = self.world.now + TTL_S
        return self.term

    def renew(self, who: str, term: LeaseTerm) -> bool:
        if (self.holder, self.term) != (who, term) or self.world.now >= self.expires_at:
            return False
        self.expires_at = self.world.now + TTL_S
        return True

    def commit(self, term: LeaseTerm, changes: Sequence[Change], *, decided_at: float) -> None:
        if self.fence and (term != self.term or self.world.now >= self.expires_at):
            raise Fenced
        self.checks.landed(term)
        before = self.stored
        self.stored = apply(before, changes)
        self.checks.committed(before, self.stored, decided_at)
        self.rows.committed(before, self.stored, decided_at)


@dataclass
class Redis:
    world: World
    touched: dict[ReplicaId, float] = field(default_factory=dict)
    watching_since: float | None = None
    epoch: str | None = None
    routers: dict[RouterId, RouterReport] = field(default_factory=dict)
    up: bool = True
    flushes: int = 0

    @property
    def now(self) -> float:
        return REDIS_EPOCH + self.world.now * REDIS_RATE

    def flush(self) -> None:
        self.flushes += 1
        self.touched, self.watching_since, self.epoch, self.routers = {}, None, None, {}

    def send_map(self, report: RouterReport, ages: dict[ReplicaId, float]) -> None:
        """One router's script: whoever finds the watch missing starts a new one."""
        if self.watching_since is None:
            self.watching_since, self.epoch = self.now, f"e{self.flushes}"
        for replica_id, age in ages.items():
            at = self.now - age
            self.touched[replica_id] = max(at, self.touched.get(replica_id, at))
        self.routers[report.router_id] = replace(report, at=self.now, epoch=self.epoch or "")

    def read(self) -> Activity:
        if not self.up:
            return Activity(None, "redis_unreachable")
        return Activity(
            ActivityMap(self.now, self.watching_since, self.epoch, dict(self.touched), dict(self.routers))
        )
