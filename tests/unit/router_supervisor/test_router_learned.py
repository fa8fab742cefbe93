"""How one word of a controller follows another: terms never go back, no gap is missed."""

import pytest

from llmgw_router.core.learned import (
    CatalogEntry,
    Delta,
    Fleet,
    Gap,
    Routes,
    Snapshot,
    StaleTerm,
    follow,
    only_alive,
)
from llmgw_router.core.table import EndpointRow, ModelRow


def row(endpoint_id: str, *, draining: bool = False) -> EndpointRow:
    replica, _, epoch = endpoint_id.partition("@")
    return EndpointRow(
        endpoint_id=endpoint_id,
        replica_id=replica,
        group_epoch=int(epoch or 1),
        model="m",
        host="h",
        port=1,
        draining=draining,
    )


def entry(name: str) -> CatalogEntry:
    return CatalogEntry(row=ModelRow(name=name))


FLEET = Fleet(replicas_ready=1, replicas_wanted=2, models_unplaceable=0)


def snapshot(term: int, version: int, *endpoints: str) -> Snapshot:
    return Snapshot(
        term=term, version=version, endpoints=tuple(map(row, endpoints)), models=(entry("m"),), fleet=FLEET
    )


KNOWN = follow(Routes(), snapshot(3, 7, "a@1", "b@1"))


def test_a_snapshot_replaces_everything() -> None:
    assert sorted(follow(KNOWN, snapshot(3, 9, "c@1")).endpoints) == ["c@1"]


def test_a_delta_changes_what_it_names() -> None:
    delta = Delta(
        term=3,
        version=8,
        upsert_endpoints=(row("b@1", draining=True), row("c@1")),
        remove_endpoints=frozenset({"a@1"}),
        upsert_models=(entry("n"),),
    )
    after = follow(KNOWN, delta)
    assert {key: e.draining for key, e in after.endpoints.items()} == {"b@1": True, "c@1": False}
    assert sorted(after.models) == ["m", "n"]
    assert (after.term, after.version, after.fleet) == (3, 8, FLEET)
    assert sorted(KNOWN.endpoints) == ["a@1", "b@1"]


REFUSED = {
    "snapshot of a past term": (snapshot(2, 99, "x@1"), StaleTerm),
    "delta of a past term": (Delta(term=2, version=8), StaleTerm),
    "delta after a hole": (Delta(term=3, version=9), Gap),
    "delta heard before": (Delta(term=3, version=7), Gap),
    "delta of a new term": (Delta(term=4, version=8), Gap),
}


@pytest.mark.parametrize(("message", "error"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(message: Snapshot | Delta, error: type[Exception]) -> None:
    with pytest.raises(error):
        follow(KNOWN, message)


def test_a_delta_needs_a_snapshot_before_it() -> None:
    with pytest.raises(Gap):
        follow(Routes(), Delta(term=1, version=1))


def test_a_new_term_begins_with_a_snapshot_of_any_version() -> None:
    assert follow(KNOWN, snapshot(4, 1, "a@1")).term == 4


def test_a_controller_without_store_counts_anew_in_its_only_term() -> None:
    assert follow(KNOWN, snapshot(3, 1, "a@2")).version == 1


def test_kept_routes_lose_only_the_endpoints_that_do_not_answer() -> None:
    kept = only_alive(KNOWN, frozenset({"b@1"}))
    assert (sorted(kept.endpoints), sorted(kept.models)) == (["b@1"], ["m"])
