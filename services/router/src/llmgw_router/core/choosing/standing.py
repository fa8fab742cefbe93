"""What one worker holds against an endpoint, or for it: failures, cool-downs, slowness.

Pure: the clock's reading comes in with every call (seconds, any monotonic clock). Nothing is kept but a
few numbers, and every call is O(1). Whether a model can spare the endpoint is not known here: `failed`
says that it should be put aside, and who knows the others decides (ejection.py).

An ejected endpoint is asked again, when its time is over, by one request: the *trial*. It holds a lease
that ends by itself, and every end of that request gives it back (HO25). Once an answer begins, the
endpoint is back, on probation: one more failure ejects it again, and a whole answer ends the probation.
"""

from enum import Enum
from typing import Final

from llmgw_router.core.config import Choosing

#: A slow endpoint gets this part of its weight: enough to be seen when it is fast again.
SLOW_SHARE: Final = 1 / 8


class Reason(Enum):
    """Why an endpoint was put aside."""

    #: Nobody listens, or nobody answers the connection.
    UNREACHABLE = "unreachable"
    #: Answers that did not come, broke, or were the engine's own errors.
    FAILING = "failing"
    #: It refuses our credential: a stale endpoint or a changed secret, for an operator to see.
    DENIED = "denied"
    #: Its health check fails.
    UNHEALTHY = "unhealthy"


class Standing:
    """State of one endpoint id, which is one replica in one group epoch: a successor starts clean."""

    __slots__ = (
        "_bad",
        "_bad_before",
        "_early",
        "_good",
        "_good_before",
        "_lowered_at",
        "_window_began",
        "avoid_until",
        "ejected",
        "failures",
        "level",
        "reason",
        "resting_until",
        "share",
        "slow_level",
        "slow_until",
        "trial",
        "weight",
    )

    def __init__(self, weight: int = 1) -> None:
        #: Until then others are used: ejected, on trial, or resting. What a pick looks at first.
        self.avoid_until = 0.0
        #: Until then it has asked in so many words to be left alone (`Retry-After`).
        self.resting_until = 0.0
        self.ejected = False
        self.reason: Reason | None = None
        #: The request that tries it, whatever stands for one.
        self.trial: object | None = None
        #: It is tried before its time, because nobody else was left.
        self._early = False
        #: Failures since the last whole answer.
        self.failures = 0
        #: How often it was ejected, less what it has made good; the cool-down doubles with each.
        self.level = 0
        self._lowered_at = 0.0
        self._window_began = 0.0
        self._good = self._bad = self._good_before = self._bad_before = 0
        self.slow_until = 0.0
        self.slow_level = 0
        self.weigh(weight)

    def weigh(self, weight: int) -> None:
        """Take over a weight, at least 1."""
        self.weight = max(1, weight)
        self.share = self.weight * (SLOW_SHARE if self.slow_until else 1.0)

    # --- outcomes

    def succeeded(self, now: float, rules: Choosing) -> None:
        """A whole answer came, of a status that is no fault of the engine."""
        self._good += 1
        if (self.failures or self.level) and not self.ejected:
            # While it is ejected, what ends is an older request: no proof that new ones are answered.
            self.failures = 0
            if self.level and now - self._lowered_at >= _cool_down_s(self.level, rules):
                self.level -= 1
                self._lowered_at = now

    def failed(self, now: float, rules: Choosing, *, by: object, decisive: bool = False) -> bool:
        """No usable answer, or a broken one. True: it should be ejected now.

        `decisive`: one such failure says it all, as a refused connection does."""
        self.failures += 1
        self._note_bad(now, rules)
        if self.ejected:
            # What was under way when it was ejected fails with it and proves nothing new, and so does
            # what was sent there before its time.
            if by is self.trial and self._early:
                self.trial = None
                return False
            return by is self.trial
        return decisive or self.failures >= rules.eject_after or self._mostly_fails(rules)

    def eject(self, now: float, rules: Choosing, reason: Reason) -> float:
        """Put it aside; returns for how long. Each time in a row twice as long, up to the top."""
        self.level = min(self.level + 1, 32)
        cool_down_s = _cool_down_s(self.level, rules)
        self.ejected = True
        self.reason = reason
        self.trial = None
        # The longer of the two stands: what was promised to last is never cut short by a new failure.
        self.avoid_until = max(self.resting_until, now + cool_down_s)
        return cool_down_s

    def rest(self, now: float, seconds: float, *, told: bool) -> None:
        """It is busy (429, 503). `told`: by its own `Retry-After`, so that asking sooner is pointless."""
        self.avoid_until = max(self.avoid_until, now + seconds)
        if told:
            self.resting_until = max(self.resting_until, now + seconds)

    # --- the way back

    def begin_trial(self, by: object, now: float, rules: Choosing) -> None:
        """An ejected endpoint is asked by this request. When its time is over nobody else asks it until
        the lease ends; before, where nobody else was left, this one can only prove that it is back."""
        if self.avoid_until <= now:
            self.trial, self._early = by, False
            self.avoid_until = max(self.resting_until, now + rules.trial_s)
        elif self.trial is None:
            self.trial, self._early = by, True

    def passed(self, now: float, rules: Choosing) -> None:
        """It answers again: back, on probation."""
        self.ejected = False
        self.reason = None
        self.trial = None
        self.avoid_until = self.resting_until
        self.failures = max(0, rules.eject_after - 1)
        self._lowered_at = now
        # The old failures are paid for.
        self._good = self._bad = self._good_before = self._bad_before = 0

    def gave_up(self, now: float) -> None:
        """The trial ended without a word about the engine (its client left): another may try at once."""
        self.trial = None
        if not self._early:
            self.avoid_until = max(self.resting_until, now)

    # --- health checks

    def looked_dead(self, now: float, seconds: float) -> None:
        """A health check of an ejected endpoint failed: no trial for `seconds`."""
        if self.ejected:
            self.avoid_until = max(self.avoid_until, now + seconds)

    def looked_alive(self, now: float, rules: Choosing) -> bool:
        """A health check was answered. True: with this it is back.

        That proves something only of an endpoint that could not be reached: one whose answers fail while
        its health page stands has to be tried."""
        if self.ejected and self.reason in (Reason.UNREACHABLE, Reason.UNHEALTHY):
            self.passed(now, rules)
            return True
        return False

    # --- slowness

    def slow(self, now: float, rules: Choosing) -> None:
        """Give it little for a while; each time in a row for twice as long, up to the top."""
        self.slow_level = min(self.slow_level + 1, 32)
        self.slow_until = now + min(rules.cool_down_most_s, rules.slow_s * 2.0 ** (self.slow_level - 1))
        self.weigh(self.weight)

    def not_slow(self) -> None:
        """Its time is over: it has its whole weight again, and is measured anew."""
        self.slow_until = 0.0
        self.weigh(self.weight)

    # --- shares of failures

    def _note_bad(self, now: float, rules: Choosing) -> None:
        # Two windows of counts instead of a list of outcomes. They turn when something fails, so that
        # what goes well has only to add one; the first failure after a long time finds them empty.
        age_s = now - self._window_began
        if age_s >= rules.window_s:
            recent = age_s < 2 * rules.window_s
            self._good_before, self._bad_before = (self._good, self._bad) if recent else (0, 0)
            self._good = self._bad = 0
            self._window_began = now
        self._bad += 1

    def _mostly_fails(self, rules: Choosing) -> bool:
        bad = self._bad + self._bad_before
        total = bad + self._good + self._good_before
        return total >= rules.eject_min_requests and bad >= rules.eject_failing_share * total


def _cool_down_s(level: int, rules: Choosing) -> float:
    return min(rules.cool_down_most_s, rules.cool_down_first_s * 2.0 ** min(level - 1, 31))
