"""Ports: what each engine needs, where bands fit, and that two engines of one node never meet (case 34)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_controller.core.activity import Verdicts
from llmgw_controller.core.catalog import Engine
from llmgw_controller.core.claims import rooms
from llmgw_controller.core.explain import Reason
from llmgw_controller.core.heard import Exit, ShardState
from llmgw_controller.core.placement import explain
from llmgw_controller.core.port_bands import (
    VLLM_BAND,
    Band,
    bands,
    lease,
    overlaps_ephemeral,
    ports_needed,
)
from llmgw_controller.core.rows import Phase, PortQuarantine
from llmgw_controller.core.trouble import troubles
from llmgw_kit.ids import NodeId
from tests.unit.controller.build import NOW, Stage, heard, model, node, profile, snapshot


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (profile(), ("http",)),
        (profile(extra_ports=("metrics",)), ("http", "metrics")),
        (profile(engine=Engine.COMMAND, nodes=2, extra_ports=("meet",)), ("http", "meet")),
        (profile(engine=Engine.VLLM), ("http", f"internal:{VLLM_BAND}")),
        (profile(engine=Engine.VLLM, nodes=2), ("http", f"internal:{VLLM_BAND}", "rendezvous")),
        (profile(engine=Engine.SGLANG, nodes=2), ("http", "internal:1", "rendezvous")),
        (
            profile(engine=Engine.SGLANG, nodes=2, extra_ports=("internal", "rendezvous")),
            ("http", "internal:1", "rendezvous"),
        ),
    ],
    ids=["plain", "listed", "a command knows itself", "vllm", "vllm ranks", "sglang ranks", "listed too"],
)
def test_what_each_engine_needs(one, expected):
    told = tuple(f"{b.name}:{b.width}" if b.name == "internal" else b.name for b in bands(one))
    assert told == expected


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        (set(), {"http": 103, "wide": 100, "wide+1": 101, "wide+2": 102}),
        ({101}, {"http": 100, "wide": 102, "wide+1": 103, "wide+2": 104}),
        ({102, 104}, None),
        ({100, 101, 102}, None),
        ({100, 101}, {"http": 105, "wide": 102, "wide+1": 103, "wide+2": 104}),
    ],
    ids=["from the lowest", "around a lease", "broken up", "too few", "just enough"],
)
def test_a_band_lies_together_and_single_ports_where_it_left_room(taken, expected):
    found = lease((100, 105), taken, (Band("http"), Band("wide", 3)))
    assert (None if found is None else dict(found)) == expected


def test_a_node_that_names_no_range_leases_nothing():
    assert lease(None, frozenset(), (Band("http"),)) is None


@given(
    st.integers(1, 40),
    st.frozensets(st.integers(100, 150)),
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
)
def test_leases_are_in_range_distinct_and_free(size, taken, widths):
    needed = tuple(Band(f"b{n}", width) for n, width in enumerate(widths))
    found = lease((100, 100 + size), taken, needed)
    if found is None:
        assert size + 1 < ports_needed(needed) + 5 * len(taken) + sum(widths), "room enough, and refused"
        return
    ports = [port for _, port in found]
    assert len(set(ports)) == len(ports) == ports_needed(needed)
    assert all(100 <= port <= 100 + size for port in ports) and not set(ports) & taken
    for n, width in enumerate(widths):
        base = dict(found)[f"b{n}"]
        assert [dict(found)[f"b{n}+{k}"] for k in range(1, width)] == [base + k for k in range(1, width)]


VLLM = model("m", profile(engine=Engine.VLLM), replicas=3)


def test_case_34_engines_that_count_upwards_never_meet_on_one_node():
    home = node("n1", 4)
    stage = Stage(snapshot([VLLM], [home], [], [heard(home, engines=("vllm",))]))
    stage.step()
    ports = [port for row in stage.rows.values() for part in row.shards for _, port in part.ports]
    assert len(ports) == len(set(ports)) == 3 * (1 + VLLM_BAND)
    assert all(row.phase is Phase.RESERVED for row in stage.rows.values())


def test_case_34_a_range_that_is_used_up_is_told_with_the_number_it_takes():
    home = node("n1", 4, engine_ports=(20000, 20010))
    stage = Stage(snapshot([VLLM], [home], [], [heard(home, engines=("vllm",))]))
    stage.step()
    waiting = [row for row in stage.rows.values() if row.phase is Phase.UNPLACEABLE]
    assert len(waiting) == 2
    assert waiting[0].reason is not None
    assert waiting[0].reason.endswith("too few free engine ports: 1; it takes 9 ports a node")


def test_case_34_one_taken_port_costs_nothing_and_a_row_of_them_waits():
    one = model("m", profile(), replicas=1)
    stage = Stage(snapshot([one], [node("n1", 1)]))
    taken = Exit(None, None, "port_taken", "bind: address in use")
    seen = []
    for _ in range(8):
        stage.step()
        row = stage.rows["m/1"]
        if row.phase is not Phase.RESERVED:
            break
        seen.append(row.shards[0].port("http"))
        stage.tell(row, ShardState.EXITED, exit=taken)
    row = stage.rows["m/1"]
    assert (row.phase, row.failures) == (Phase.BACKOFF, 0)
    assert seen == [20000, 20001, 20002, 20003, 20004, 20005]
    assert row.until is not None and 4.0 <= row.until - row.since <= 5.0
    assert stage.snap.stored.attempts == ()


def test_case_34_a_port_in_quarantine_is_not_leased_and_the_reason_names_the_range():
    small = node("n1", 2, engine_ports=(20000, 20000))
    snap = snapshot([VLLM], [small], quarantine=(PortQuarantine(NodeId("n1"), 20000, NOW + 1),))
    one = model("m")
    told = explain(one, one.profiles[0], rooms(snap, NOW))
    assert told.filters[0].reason is Reason.PORTS_EXHAUSTED


@pytest.mark.parametrize(
    ("first", "last", "overlaps"),
    [
        (20000, 24999, False),
        (30000, 32767, False),
        (30000, 32768, True),
        (40000, 41000, True),
        (61000, 62000, False),
    ],
)
def test_case_34_ports_that_linux_hands_to_clients_are_a_note(first, last, overlaps):
    assert overlaps_ephemeral((first, last)) is overlaps
    snap = snapshot([], [node("n1", engine_ports=(first, last))])
    kinds = [one.kind for one in troubles(snap, rooms(snap, NOW), Verdicts(), NOW)]
    assert ("engine_ports" in kinds) is overlaps
