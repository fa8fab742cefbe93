"""How many endpoints of a model may be put aside, and who is asked about it. Pure."""

from collections.abc import Iterable

from llmgw_router.core.choosing.standing import Standing


def may_eject(ejected: int, total: int, share: float) -> bool:
    """Whether one more of `total` may be ejected when `ejected` are: at most `share` of them, but always
    one, and never the last. A model whose every engine fails is better asked than given up."""
    return ejected + 1 <= max(1, int(share * total)) and ejected + 1 < total


def too_many(ejected: Iterable[Standing], total: int, share: float) -> list[Standing]:
    """Whom to take back because the model has shrunk: those whose time would be over first."""
    still = sorted((one for one in ejected if one.ejected), key=lambda one: one.avoid_until)
    most = min(max(1, int(share * total)), max(0, total - 1))
    return still[: max(0, len(still) - most)]
