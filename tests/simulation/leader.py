"""A simulated process that leads or would: it may freeze or die, and leads for as long as it renews."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmgw_controller.core import lease
from llmgw_controller.wakefulness import Wakefulness
from llmgw_kit.ids import LeaseTerm
from tests.simulation.store import MARGIN_S, TTL_S
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.sim import Sim

RENEW_S = 2.0
RETRY_S = 1.0


@dataclass(frozen=True)
class Monotonic:
    """The world's time, for what asks a clock."""

    world: World

    def unix_s(self) -> float:
        raise NotImplementedError

    def monotonic_s(self) -> float:
        return self.world.now

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


class Leader:
    def __init__(self, sim: "Sim", name: str) -> None:
        self.sim = sim
        self.name = name
        self.life = 0
        self.running = True
        self.frozen_until = 0.0
        self._forget()

    def boot(self) -> None:
        """Try to lead."""
        self._at(self.sim.world.between(0.0, 1.0), self._lead)

    def hang_up(self, word: str | None) -> None:
        """Every stream ends, with a word or by a crash."""
        raise NotImplementedError

    @property
    def says_it_leads(self) -> bool:
        """As it would answer now: a frozen one answers nothing."""
        return self.running and not self.frozen and self.term is not None and self._may_act()

    @property
    def frozen(self) -> bool:
        return self.sim.world.now < self.frozen_until

    # --- faults

    def freeze(self, seconds: float) -> None:
        if self.running and not self.frozen:
            self.sim.world.note(self.name, f"freezes for {seconds:.0f} s")
            self.frozen_until = self.sim.world.now + seconds

    def crash(self) -> None:
        if not self.running:
            return
        self.sim.world.note(self.name, "crashes")
        self.running = False
        self.life += 1
        self.hang_up(None)
        self._forget()
        self.sim.world.at(self.sim.world.between(1.0, 30.0), self._restart)

    def _restart(self) -> None:
        self.sim.world.note(self.name, "starts")
        self.running = True
        self.frozen_until = 0.0
        self.boot()

    def _forget(self) -> None:
        """What lives in one process and one term only."""
        self.term: LeaseTerm | None = None
        self.renewed_at = 0.0
        self.term_started = 0.0
        #: Of the database's clock at the takeover; within a term time only goes on.
        self.offset_s = 0.0
        #: The real one; whatever this process does is a look.
        self.awake = Wakefulness(Monotonic(self.sim.world), lambda: self.clock)

    @property
    def clock(self) -> float:
        """The term clock."""
        return self.sim.world.now + self.offset_s

    def _at(self, delay_s: float, action: Any, *args: Any) -> None:
        """Later in the same life; a frozen process does it when it thaws."""
        self.sim.world.at(delay_s, self._do, self.life, action, args)

    def _do(self, life: int, action: Any, args: tuple[Any, ...]) -> None:
        if life != self.life or not self.running:
            return
        if self.frozen:
            self.sim.world.at(self.frozen_until - self.sim.world.now + 0.001, self._do, life, action, args)
            return
        self.awake.look()
        action(*args)

    # --- leadership

    def _may_act(self) -> bool:
        return lease.may_act(self.renewed_at, self.sim.world.now, ttl_s=TTL_S, margin_s=MARGIN_S)

    def _lead(self) -> None:
        now = self.sim.world.now
        if self.sim.store.paused:
            self._at(RETRY_S, self._lead)  # No answer is not a loss; `_decide` sees when its time is over.
            return
        if self.term is None:
            term = self.sim.store.acquire(f"{self.name}#{self.life}")
            if term is not None:
                self.sim.world.note(self.name, f"leads, term {term}")
                self.sim.checks.count("terms")
                self._forget()
                self.offset_s = self.sim.store.skew_s
                self.term, self.renewed_at, self.term_started = term, now, self.clock
            self._at(RETRY_S, self._lead)
            return
        if self.sim.store.renew(f"{self.name}#{self.life}", self.term):
            self.renewed_at = now
        else:
            self._step_down("lost the lease")
        self._at(RENEW_S, self._lead)

    def _step_down(self, why: str) -> None:
        self.sim.world.note(self.name, f"steps down: {why}")
        self.hang_up("not_leader")
        self._forget()
