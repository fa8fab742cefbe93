"""A controller that slept notices it, whoever is the first to run after."""

import pytest

from llmgw_controller.wakefulness import LATE_S, Wakefulness


class Hand:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.at = 100.0

    def monotonic_s(self) -> float:
        return self.at

    def unix_s(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody waits here")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([1.0, 1.0, 1.0], None),
        ([LATE_S], None),
        ([LATE_S + 0.1], 1103.1),
        ([1.0, 12.0, 1.0, 1.0], 1113.0),
        ([4.0, 1.0, 9.0, 1.0], 1114.0),
    ],
    ids=["every second", "just in time", "late", "awake since its waking", "the last sleep counts"],
)
def test_a_late_look_tells_of_a_sleep(steps, expected):
    clock = Hand()
    awake = Wakefulness(clock, lambda: clock.at + 1000.0)
    found = None
    for step in steps:
        clock.at += step
        found = awake.since
    assert found == (None if expected is None else pytest.approx(expected))
    if found is not None:
        assert awake.asleep_since == pytest.approx(found - max(steps[1:], default=steps[0]))
