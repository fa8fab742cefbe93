"""Rates and remaining times, unknown where nothing is known."""

from llmgw_mirror.core.progress import WINDOW_S, Meter


def test_unknown_until_there_is_something_to_go_by() -> None:
    meter = Meter()
    assert meter.rate_bytes_s(0.0) is None
    meter.note(0.0, 0)
    assert meter.rate_bytes_s(0.1) is None
    assert meter.eta_s(0.1, 100) is None


def test_a_steady_rate_and_its_end() -> None:
    meter = Meter()
    for tenth in range(51):
        meter.note(tenth / 10, tenth * 10)
    assert meter.rate_bytes_s(5.0) == 100.0
    assert meter.eta_s(5.0, 1000) == 5.0
    assert meter.eta_s(5.0, None) is None


def test_the_window_forgets_an_old_pace() -> None:
    meter = Meter()
    for second in range(100):
        meter.note(float(second), second * 10)
    for second in range(100, 120):
        meter.note(float(second), 990 + (second - 99) * 1000)
    rate = meter.rate_bytes_s(119.0)
    assert rate is not None
    assert 900 < rate <= 1000


def test_silence_counts_and_then_stops_every_estimate() -> None:
    meter = Meter()
    meter.note(0.0, 0)
    meter.note(1.0, 100)
    assert meter.rate_bytes_s(1.0) == 100.0
    assert meter.rate_bytes_s(5.0) == 20.0
    assert meter.rate_bytes_s(1.0 + WINDOW_S) == 0.0
    assert meter.eta_s(1.0 + WINDOW_S, 1000) is None


def test_starting_over_forgets_the_past() -> None:
    meter = Meter()
    meter.note(0.0, 1000)
    meter.note(1.0, 2000)
    meter.note(2.0, 0)
    assert meter.rate_bytes_s(2.1) is None
