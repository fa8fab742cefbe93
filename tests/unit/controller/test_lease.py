"""The holder's own rules: which timings it accepts, and until when it may act."""

import pytest

from llmgw_controller.core.lease import LeaseTiming, may_act, validated
from llmgw_kit.errors import InvalidRequest


@pytest.mark.parametrize(
    ("renewed_at", "now", "may"),
    [(100.0, 100.0, True), (100.0, 107.9, True), (100.0, 108.0, False), (100.0, 110.0, False)],
    ids=["at once", "just before the margin", "at the margin", "at the end"],
)
def test_the_holder_stops_a_margin_before_the_lease_does(renewed_at, now, may):
    assert may_act(renewed_at, now, ttl_s=10.0, margin_s=2.0) is may


@pytest.mark.parametrize(
    ("renew", "retry", "ttl", "margin", "good"),
    [
        (2.0, 1.0, 10.0, 2.0, True),
        (6.0, 1.0, 10.0, 2.0, True),
        (6.1, 1.0, 10.0, 2.0, False),
        (2.0, 3.1, 10.0, 2.0, False),
        (2.0, 1.0, 5.0, 2.0, False),
    ],
    ids=["defaults", "exactly enough", "renews too rarely", "retries too slowly", "ttl too short"],
)
def test_timings_must_leave_room_for_a_lost_renewal(renew, retry, ttl, margin, good):
    timing = LeaseTiming(ttl_s=ttl, renew_s=renew, retry_s=retry, margin_s=margin)
    if good:
        assert validated(timing) == timing
        return
    with pytest.raises(InvalidRequest) as caught:
        validated(timing)
    for number in (renew, retry, ttl, margin):
        assert f"{number:g} s" in caught.value.text


@pytest.mark.parametrize("field", ["ttl_s", "renew_s", "retry_s", "margin_s"])
def test_no_timing_is_zero(field):
    with pytest.raises(InvalidRequest, match=field):
        validated(LeaseTiming(**{field: 0.0}))
