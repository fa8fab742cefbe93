"""The table by changes is the table from scratch; a push is what differs, and costs what it touches."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.core.table import EndpointRow, ModelRow, Target
from llmgw_router.core.table_index import Change, TableIndex
from llmgw_router.relay import ipc
from llmgw_router.relay.slots import Slots
from llmgw_router.supervisor.pushes import Pushes
from llmgw_router.supervisor.slot_book import SlotBook

NAMES = st.sampled_from("mnopq")
ENDPOINTS = st.builds(
    lambda name, model, also, draining, slot, port: EndpointRow(
        endpoint_id=name,
        replica_id=name,
        group_epoch=1,
        model=model,
        also_models=tuple(also),
        host="h",
        port=port,
        draining=draining,
        slot=slot,
    ),
    st.sampled_from("abcdef"),
    NAMES,
    st.lists(NAMES, max_size=2),
    st.booleans(),
    st.sampled_from([None, 0, 1]),
    st.integers(1, 2),
)
MODELS = st.builds(
    lambda name, aliases, reason: ModelRow(name=name, aliases=tuple(aliases), reason=reason),
    NAMES,
    st.lists(NAMES, max_size=2),
    st.sampled_from([None, "why"]),
)
TABLES = st.tuples(
    st.lists(ENDPOINTS, max_size=6, unique_by=lambda row: row.endpoint_id),
    st.lists(MODELS, max_size=4, unique_by=lambda row: row.name),
)


def from_scratch(endpoints: Iterable[EndpointRow], models: Iterable[ModelRow]) -> dict[str, Target]:
    """What a table means, said plainly."""
    routable: dict[str, set[str]] = {}
    for row in endpoints:
        if row.slot is not None:
            for name in (row.model, *row.also_models):
                routable.setdefault(name, set()).update([] if row.draining else [row.endpoint_id])
    rows = {name: ModelRow(name=name) for name in routable} | {row.name: row for row in models}
    targets = {name: Target(row, tuple(sorted(routable.get(name, ())))) for name, row in rows.items()}
    by_name = dict(targets)
    for name in sorted(targets):
        for alias in rows[name].aliases:
            by_name.setdefault(alias, targets[name])
    return by_name


@given(st.lists(TABLES, min_size=1, max_size=6))
def test_changes_add_up_to_the_table_from_scratch(
    tables: list[tuple[list[EndpointRow], list[ModelRow]]],
) -> None:
    index = TableIndex()
    for endpoints, models in tables:
        before = dict(index.targets)
        touched = index.change(index.difference(endpoints, models))
        assert index.targets == from_scratch(endpoints, models)
        # A worker renews only what it is told of.
        for name in before.keys() | index.targets.keys():
            assert name in touched or before.get(name) is index.targets.get(name)


def test_one_endpoint_touches_its_models_alone() -> None:
    index = TableIndex()
    rows = [
        EndpointRow(
            endpoint_id=f"e{n}",
            replica_id=f"e{n}",
            group_epoch=1,
            model=f"m{n % 2000}",
            host="h",
            port=1,
            slot=n,
        )
        for n in range(10_000)
    ]
    index.change(Change(endpoints=tuple(rows), models=(ModelRow(name="m7", aliases=("seven",)),)))
    assert index.change(Change(gone_endpoints=frozenset(["e7"]))) == {"m7", "seven"}
    assert "e7" not in index.targets["seven"].endpoint_ids


def static(name: str, *, draining: bool = False, port: int = 1) -> EndpointRow:
    return EndpointRow(
        endpoint_id=name, replica_id=name, group_epoch=1, model="m", host="h", port=port, draining=draining
    )


def test_a_push_is_what_differs_and_a_newcomer_gets_everything() -> None:
    slots = Slots.create(workers=1, capacity=2)
    try:
        pushes = Pushes(SlotBook(slots))
        a, b = static("a"), static("b")
        first = pushes.push(
            ipc.TableUpdate(endpoints=(a, b), models=(ModelRow(name="m"),), term=1, version=1)
        )
        assert [row.endpoint_id for row in first.endpoints] == ["a", "b"]
        assert [row.name for row in first.models] == ["m"]
        same = pushes.push(ipc.TableUpdate(endpoints=(b, a), models=(ModelRow(name="m"),), term=1, version=2))
        assert (same.endpoints, same.models, same.gone_endpoints, same.version) == ((), (), (), 2)
        drain = pushes.push(ipc.TableUpdate(endpoints=(static("a", draining=True), b), term=1, version=3))
        assert [(row.endpoint_id, row.draining) for row in drain.endpoints] == [("a", True)]
        assert drain.gone_models == ("m",)
        assert pushes.draining == {"a"}
        whole = pushes.whole()
        assert (whole.seq, whole.version) == (3, 3)
        assert sorted((row.endpoint_id, row.draining) for row in whole.endpoints) == [
            ("a", True),
            ("b", False),
        ]
        assert all(row.slot is not None for row in whole.endpoints)
    finally:
        slots.close()


def test_what_had_no_slot_is_tried_again_with_every_push() -> None:
    slots = Slots.create(workers=1, capacity=1)
    try:
        book = SlotBook(slots)
        pushes = Pushes(book)
        assert pushes.push(ipc.TableUpdate(endpoints=(static("a"),))).seq == 1
        pushes.push(ipc.TableUpdate(endpoints=(static("b"),)))
        assert [row.endpoint_id for row in pushes.homeless] == ["b"]
        book.reclaim(applied_seq=2)
        third = pushes.push(ipc.TableUpdate(endpoints=(static("b"),)))
        assert [row.endpoint_id for row in third.endpoints] == ["b"]
        assert not pushes.homeless
    finally:
        slots.close()


@pytest.mark.parametrize("undone", [True, False])
def test_a_drain_mark_taken_off_is_a_change(undone: bool) -> None:
    slots = Slots.create(workers=1, capacity=2)
    try:
        pushes = Pushes(SlotBook(slots))
        pushes.push(ipc.TableUpdate(endpoints=(static("a", draining=True),)))
        after = pushes.push(ipc.TableUpdate(endpoints=(static("a", draining=not undone),)))
        assert (len(after.endpoints) == 1) is undone
        assert pushes.draining == (set() if undone else {"a"})
    finally:
        slots.close()
