"""Times in requests: what is no time is the caller's mistake, not a failure of the store."""

import math

import pytest

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.operator.desk import LAST_MOMENT_S, moment
from llmgw_kit.errors import InvalidRequest


@pytest.mark.parametrize("at", [-1.0, -8.64e18, 8.64e18, LAST_MOMENT_S + 1, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(
    ("request_type", "field"),
    [
        (pb.ListEventsRequest, "since_unix_s"),
        (pb.WatchEventsRequest, "since_unix_s"),
        (pb.ListEvictionsRequest, "since_unix_s"),
        (pb.GetStatusRequest, "at_unix_s"),
    ],
)
def test_what_is_no_time_is_refused(request_type: type, field: str, at: float) -> None:
    with pytest.raises(InvalidRequest, match=f"{field} is"):
        moment(request_type(**{field: at}), field)


@pytest.mark.parametrize("at", [0.0, 1_796_049_120.5, LAST_MOMENT_S])
def test_a_time_is_taken_as_it_is(at: float) -> None:
    assert moment(pb.GetStatusRequest(at_unix_s=at), "at_unix_s") == at


def test_none_is_no_bound() -> None:
    assert moment(pb.GetStatusRequest(), "at_unix_s") is None
