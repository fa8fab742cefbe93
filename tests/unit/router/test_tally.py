from llmgw_router.supervisor.tally import Tally


def test_nothing_is_true_of_all_while_one_is_starting() -> None:
    tally = Tally()
    assert tally.applied_by_all is None
    tally.spawned(0)
    tally.applied(0, 3)
    assert tally.applied_by_all == 3
    tally.spawned(1)
    assert tally.applied_by_all is None
    tally.applied(1, 2)
    assert tally.applied_by_all == 2
    tally.gone(1)
    assert tally.applied_by_all == 3
    assert (tally.applied_by(0), tally.applied_by(1)) == (3, None)


def test_a_push_is_told_once_and_only_the_newest() -> None:
    tally = Tally()
    for worker in (0, 1):
        tally.spawned(worker)
        tally.applied(worker, 1)
    assert not tally.newly_applied(2)
    tally.applied(0, 2)
    assert not tally.newly_applied(2)
    tally.applied(1, 2)
    assert tally.newly_applied(2)
    assert not tally.newly_applied(2)
    # A successor applies the same push: no news.
    tally.spawned(1)
    tally.applied(1, 2)
    assert not tally.newly_applied(2)


def test_a_drain_is_told_once_per_mark_when_known_and_empty() -> None:
    running = {"a": 0, "b": 1}
    tally = Tally()
    tally.spawned(0)
    tally.applied(0, 1)
    tally.marked(["a", "b"])
    # Not applied yet: the worker may be picking a this very moment.
    assert tally.newly_drained(2, running.__getitem__) == frozenset()
    tally.applied(0, 2)
    assert tally.newly_drained(2, running.__getitem__) == {"a"}
    assert tally.newly_drained(2, running.__getitem__) == frozenset()
    running["b"] = 0
    assert tally.newly_drained(2, running.__getitem__) == {"b"}
    tally.marked([])
    tally.marked(["a"])
    assert tally.newly_drained(2, running.__getitem__) == {"a"}


def test_held_requests_add_up_and_go_with_their_worker() -> None:
    tally = Tally()
    tally.wants(0, "m", 2)
    tally.wants(1, "m", 3)
    tally.wants(1, "n", 1)
    assert tally.held() == {"m": 5, "n": 1}
    tally.wants(1, "n", 0)
    tally.wants(1, "n", 0)
    assert tally.held() == {"m": 5}
    tally.gone(1)
    assert tally.held() == {"m": 2}
    tally.gone(0)
    assert tally.held() == {}
