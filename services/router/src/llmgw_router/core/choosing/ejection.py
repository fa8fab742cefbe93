"""How many endpoints of a model may be put aside, and who is asked about it. Pure."""

from collections.abc import Iterable
from typing import Final

from llmgw_router.core.choosing.standing import Reason, Standing

#: Nobody is there, which is seen and not judged: the cap is against wrong judgements. Such an endpoint
#: fails at once, so it looks idle, and would be picked before those that answer.
ABSENT: Final = (Reason.UNREACHABLE, Reason.UNHEALTHY)


def may_eject(ejected: int, total: int, share: float, *, absent: bool = False) -> bool:
    """Whether one more of `total` may be ejected when `ejected` are: at most `share` of them unless it is
    `absent`, but always one, and never the last. A model whose every engine fails is better asked than
    given up."""
    if ejected + 1 >= total:
        return False
    return absent or ejected + 1 <= max(1, int(share * total))


def too_many(ejected: Iterable[Standing], total: int, share: float) -> list[Standing]:
    """Whom to take back because the model has shrunk: those whose time would be over first, and who is
    absent last."""
    still = sorted(
        (one for one in ejected if one.ejected), key=lambda one: (one.reason in ABSENT, one.avoid_until)
    )
    judged = sum(one.reason not in ABSENT for one in still)
    # What the absent leave of the cap is for the others; without any of those nothing is given back for it.
    beyond_share = min(judged, max(0, len(still) - max(1, int(share * total))))
    beyond_all = max(0, len(still) - max(0, total - 1))
    return still[: max(beyond_share, beyond_all)]
