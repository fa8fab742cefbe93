"""What waits for a cold model and what waits at a busy one: both are held, only the first wants a start."""

from llmgw_router.supervisor.tally import Tally


def test_both_are_held_and_only_the_cold_is_wanted() -> None:
    tally = Tally()
    tally.wants(0, "cold", 2)
    tally.queued(0, "busy", 3)
    tally.queued(1, "busy", 4)
    # Between the two for a moment, while its last replica goes.
    tally.wants(1, "busy", 1)
    assert tally.held() == {"cold": 2, "busy": 8}
    assert tally.wanted() == {"cold": 2, "busy": 1}
    tally.queued(0, "busy", 0)
    assert tally.held() == {"cold": 2, "busy": 5}
    tally.gone(1)
    assert tally.held() == {"cold": 2}
    tally.gone(0)
    assert tally.held() == tally.wanted() == {}
