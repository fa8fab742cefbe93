"""When the registry is asked, and when it is not: a dead one costs one time-out, not one a click (M21)."""

from dataclasses import dataclass, replace

#: After the first failure, doubled with each further one up to the second.
REST_S, REST_MOST_S = 5.0, 60.0
#: A registry that asks to be left alone for longer is asked again after so long all the same.
ASKED_MOST_S = 600.0


@dataclass(frozen=True)
class Trouble:
    """What happened and since when (seconds since 1970). `count`: failures in a row."""

    what: str
    since: float
    count: int = 1


@dataclass(frozen=True)
class Breaker:
    """Closed while `rests_until` is None. Times are monotonic seconds but for those in `trouble`.

    `probing`: somebody is trying, alone, whether it is back."""

    trouble: Trouble | None = None
    rests_until: float | None = None
    probing: bool = False


def may_ask(breaker: Breaker, now: float) -> tuple[Breaker, bool]:
    """Whether to ask now. A yes after a rest is for one caller: the others wait for what becomes of it."""
    if breaker.rests_until is None:
        return breaker, True
    if breaker.probing or now < breaker.rests_until:
        return breaker, False
    return replace(breaker, probing=True), True


def answered(breaker: Breaker) -> Breaker:
    """It said something sensible, if only that there is no such thing."""
    return Breaker()


def failed(breaker: Breaker, what: str, *, now: float, wall: float, rest_s: float | None = None) -> Breaker:
    """It did not answer, or is not able to. `rest_s`: as it asked for itself."""
    before = breaker.trouble
    trouble = Trouble(
        what, wall if before is None else before.since, 1 if before is None else before.count + 1
    )
    own_s = min(REST_MOST_S, REST_S * 2.0 ** min(trouble.count - 1, 10))
    return Breaker(trouble, now + (own_s if rest_s is None else min(max(rest_s, 1.0), ASKED_MOST_S)))


def odd(breaker: Breaker, what: str, *, wall: float) -> Breaker:
    """It answers, but not as a registry: told as trouble, and asked again whenever somebody wants it."""
    since = wall if breaker.trouble is None else breaker.trouble.since
    return Breaker(Trouble(what, since))


def given_up(breaker: Breaker) -> Breaker:
    """The one who tried went away before it was known."""
    return replace(breaker, probing=False)


def tried_again_in_s(breaker: Breaker, now: float) -> float | None:
    """None: at once, whenever somebody asks."""
    return None if breaker.rests_until is None else max(0.0, breaker.rests_until - now)
