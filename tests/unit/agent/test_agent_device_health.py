"""Device health: what a fault means, how long it stands, and that the parts of a device's memory add up."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.core.devices import DeviceState, Holder, shared_out
from llmgw_agent.core.faults import SIGNS, XIDS, Fault, FaultClass, named, sign, xid
from llmgw_agent.core.health import COUNTED, QUIET_S, Health, Sight, event, look, rebooted

HERE = Sight(energy_mj=1_000)
AWAY = Sight(here=False)
T = 1_800_000_000.0


def after(*steps: tuple[float, Fault | Sight], health: Health | None = None) -> Health:
    """Steps at seconds after T, in order."""
    health = Health() if health is None else health
    for at, step in steps:
        if isinstance(step, Fault):
            health = event(health, replace(step, at=T + at))
        else:
            health = look(health, step, T + at)
    return health


def told(health: Health) -> tuple[str, str | None]:
    return health.state.value, health.reason


@pytest.mark.parametrize(
    ("code", "fault_class"),
    [
        *((code, FaultClass.APP) for code in (13, 31, 43, 45)),
        *((code, FaultClass.SUSPECT) for code in (63, 94, 999)),
        *((code, FaultClass.FATAL) for code in (48, 64, 74, 79, 95, 119, 120)),
    ],
)
def test_the_class_of_the_numbers_that_matter(code: int, fault_class: FaultClass) -> None:
    fault = xid(code, 5.0)
    assert (fault.fault_class, fault.reason, fault.at) == (fault_class, f"xid_{code}", 5.0)
    assert fault.text


def test_words_of_faults_are_found_by_name() -> None:
    assert named("xid_79", 1.0) == xid(79, 1.0)
    assert named("row_remap_failed", 1.0) == sign("row_remap_failed", 1.0)
    assert named("xid_x", 1.0).fault_class is FaultClass.SUSPECT
    assert all(text[0].islower() or text.startswith("NV") for _, text in (*XIDS.values(), *SIGNS.values()))


def test_an_application_fault_is_noted_and_changes_nothing() -> None:
    health = after((0, HERE), (1, xid(13, 0)), (2, HERE))
    assert told(health) == ("healthy", None)
    assert health.newest is not None
    assert (health.newest.reason, health.since) == ("xid_13", None)


def test_a_suspect_fault_heals_after_a_quiet_time_counted_from_its_newest() -> None:
    health = after((0, HERE), (1, xid(94, 0)))
    assert told(health) == ("unhealthy", "xid_94")
    health = after((300, xid(94, 0)), (300 + QUIET_S - 1, HERE), health=health)
    assert told(health) == ("unhealthy", "xid_94")
    assert health.since == T + 1
    health = after((300 + QUIET_S, HERE), health=health)
    assert told(health) == ("healthy", None)
    assert health.since == T + 300 + QUIET_S
    assert health.newest is not None, "what it had is not forgotten"
    assert health.newest.reason == "xid_94"


def test_a_fatal_fault_never_heals_by_time_only_by_a_reset() -> None:
    health = after((0, HERE), (1, xid(48, 0)), (10 * QUIET_S, Sight(energy_mj=9_000)))
    assert told(health) == ("unhealthy", "xid_48")
    assert told(after((0, Sight(energy_mj=12)), health=health)) == ("healthy", None)
    assert told(rebooted(health)) == ("healthy", None)
    assert rebooted(health).newest == health.newest


def test_back_from_missing_is_a_reset_only_where_no_counter_says_otherwise() -> None:
    lost = after((0, HERE), (1, xid(79, 0)), (2, AWAY))
    assert told(lost) == ("missing", "xid_79")
    assert told(after((3, Sight(energy_mj=1_500)), health=lost)) == ("unhealthy", "xid_79"), "a hiccup"
    assert told(after((3, Sight(energy_mj=3)), health=lost)) == ("healthy", None)
    blind = after((0, Sight()), (1, xid(79, 0)), (2, AWAY))
    assert told(after((3, Sight()), health=blind)) == ("healthy", None)
    assert told(after((0, Sight()), (1, AWAY))) == ("missing", "vanished")


def test_what_the_device_shows_stands_while_it_shows_it_and_is_one_fault() -> None:
    broken = replace(HERE, signs=frozenset({"row_remap_failed"}))
    health = after((0, broken), (5, broken), (10 * QUIET_S, broken))
    assert told(health) == ("unhealthy", "row_remap_failed")
    assert health.newest is not None
    assert (health.newest.at, health.since) == (T, T)
    assert told(after((1, HERE), health=health)) == ("healthy", None)


def test_uncorrectable_errors_count_when_they_grow_and_are_a_note_when_they_stand() -> None:
    counted = replace(HERE, uncorrectable=3)
    health = after((0, counted))
    assert told(health) == ("unhealthy", "ecc_uncorrectable")
    health = after((QUIET_S, counted), health=health)
    assert told(health) == ("healthy", None)
    assert health.notes == ("uncorrectable memory errors since the driver was loaded: 3",)
    health = after((QUIET_S + 1, replace(HERE, uncorrectable=4)), health=health)
    assert told(health) == ("unhealthy", "ecc_uncorrectable")
    reset = after((QUIET_S + 2, Sight(energy_mj=1, uncorrectable=0)), health=health)
    assert told(reset) == ("healthy", None)
    assert told(after((QUIET_S + 3, Sight(energy_mj=2, uncorrectable=1)), health=reset)) == (
        "unhealthy", "ecc_uncorrectable",
    )  # fmt: skip


def test_the_first_fatal_fault_is_the_reason_and_others_do_not_move_since() -> None:
    health = after((0, HERE), (1, xid(94, 0)), (2, xid(48, 0)), (3, xid(64, 0)), (4, HERE))
    assert told(health) == ("unhealthy", "xid_48")
    assert health.since == T + 2
    assert health.newest is not None
    assert health.newest.reason == "xid_64"


#: Without the one that comes of a counter.
SHOWN = sorted(SIGNS.keys() - {COUNTED})
STEPS = st.one_of(
    st.sampled_from([13, 31, 63, 94, 48, 79, 119]).map(lambda code: xid(code, 0.0)),
    st.builds(
        Sight, here=st.booleans(), signs=st.sets(st.sampled_from(SHOWN), max_size=2).map(frozenset),
        uncorrectable=st.none() | st.integers(0, 3), energy_mj=st.none() | st.integers(0, 3),
    ),
)  # fmt: skip


@given(st.lists(st.tuples(st.floats(0, 2 * QUIET_S), STEPS), max_size=12))
def test_in_every_history_state_reason_and_faults_agree(steps: list[tuple[float, Fault | Sight]]) -> None:
    at, health = 0.0, Health()
    for wait, step in steps:
        at += wait
        before = health
        health = after((at, step), health=health)
        assert (health.state is DeviceState.HEALTHY) == (health.reason is None)
        assert (health.state is DeviceState.MISSING) == (not health.here)
        assert all(one.fault.fault_class is not FaultClass.APP for one in health.faults)
        assert all(one.fault.at <= one.last for one in health.faults)
        reasons = [one.fault.reason for one in health.faults]
        assert len(reasons) == len(set(reasons))
        if told(before) == told(health):
            assert health.since == before.since
        else:
            assert health.since == T + at


@given(st.lists(STEPS, max_size=8), STEPS.filter(lambda step: isinstance(step, Sight)))
def test_a_second_equal_look_changes_no_state(steps: list[Fault | Sight], sight: Sight) -> None:
    health = after(*zip(itertools.count(), steps, strict=False))
    once = look(health, sight, T + 100)
    twice = look(once, sight, T + 100)
    assert (told(once), once.since, once.newest) == (told(twice), twice.since, twice.newest)


HOLDERS = st.builds(
    Holder, pid=st.integers(1, 30), memory_bytes=st.none() | st.integers(0, 1 << 30),
    engine_pid=st.none() | st.integers(1, 4), seen=st.booleans(),
)  # fmt: skip


@given(st.lists(HOLDERS, unique_by=lambda one: one.pid))
def test_case_33_own_and_foreign_memory_are_the_whole_and_nobody_counts_twice(holders: list[Holder]) -> None:
    shared = shared_out(holders)
    total = sum(one.memory_bytes or 0 for one in holders)
    own = sum(use.memory_bytes for use in shared.own)
    ours = {one.pid for one in holders if one.engine_pid is not None}
    assert not ours & {one.pid for one in shared.foreign}
    assert own == sum(one.memory_bytes or 0 for one in holders if one.pid in ours)
    if shared.foreign_bytes is not None:
        assert own + shared.foreign_bytes == total
        assert shared.foreign_bytes == sum(one.memory_bytes or 0 for one in shared.foreign)
    else:
        untold = [one for one in holders if one.pid not in ours]
        assert any(not one.seen or one.memory_bytes is None for one in untold)
