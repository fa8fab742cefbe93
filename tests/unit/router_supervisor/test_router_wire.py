"""routing.proto read into own types: absence stays absence, and what cannot be meant is refused."""

import pytest

from llmgw.v1 import routing_pb2 as pb
from llmgw_router.core.learned import Delta, Snapshot
from llmgw_router.core.table import Availability
from llmgw_router.wire import BadRoutes, catalog_entry, endpoint_row, routes_message

ENDPOINT = pb.Endpoint(
    endpoint_id="r@2", replica_id="r", group_epoch=2, model="m", url="http://10.0.0.1:20000", pool="gpu"
)


def changed(**fields: object) -> pb.Endpoint:
    message = pb.Endpoint()
    message.CopyFrom(ENDPOINT)
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def test_an_endpoint() -> None:
    row = endpoint_row(changed(weight=0, draining=True))
    assert (row.host, row.port, row.base_path, row.weight, row.draining) == ("10.0.0.1", 20000, "", 1, True)
    assert row.credential is None
    assert endpoint_row(changed(credential="k")).credential == "k"
    assert endpoint_row(changed(url="http://[fd00::1]:9")).host == "fd00::1"


def test_how_many_an_endpoint_runs_at_once_and_when_nobody_says() -> None:
    assert endpoint_row(ENDPOINT).concurrency is None
    assert endpoint_row(changed(max_concurrency=64)).concurrency == 64
    # Nothing at once cannot be meant of a ready replica: it would never be given a request.
    assert endpoint_row(changed(max_concurrency=0)).concurrency is None


@pytest.mark.parametrize(
    "fields",
    [
        {"endpoint_id": ""},
        {"replica_id": ""},
        {"model": ""},
        {"url": ""},
        {"url": "10.0.0.1:1"},
        {"url": "http://h:x"},
    ],
    ids=str,
)
def test_an_endpoint_that_cannot_be_meant(fields: dict[str, object]) -> None:
    with pytest.raises(BadRoutes, match="endpoint"):
        endpoint_row(changed(**fields))


def test_a_model_and_what_nobody_measured() -> None:
    entry = catalog_entry(
        pb.CatalogModel(
            model="m",
            aliases=["x"],
            availability=pb.MODEL_AVAILABILITY_COLD,
            activatable=True,
            hold_timeout_s=30,
            max_held=8,
        )
    )
    assert entry.row.availability is Availability.COLD
    assert (entry.row.aliases, entry.row.hold_timeout_s, entry.row.max_held) == (("x",), 30, 8)
    assert (entry.row.eta_s, entry.row.reason, entry.created) == (None, None, None)


def test_a_model_without_a_state_is_refused_and_a_state_of_the_future_is_told() -> None:
    with pytest.raises(BadRoutes):
        catalog_entry(pb.CatalogModel(model="m"))
    entry = catalog_entry(pb.CatalogModel(model="m", availability=99))  # type: ignore[arg-type]
    assert entry.row.availability is Availability.UNAVAILABLE
    assert "99" in (entry.row.reason or "")


def test_messages() -> None:
    model = pb.CatalogModel(model="m", availability=pb.MODEL_AVAILABILITY_READY)
    snapshot = routes_message(
        pb.WatchRoutesResponse(
            term=1, version=2, snapshot=pb.RouteSnapshot(endpoints=[ENDPOINT], models=[model])
        )
    )
    assert isinstance(snapshot, Snapshot)
    assert (snapshot.term, snapshot.version, snapshot.fleet) == (1, 2, None)
    delta = routes_message(
        pb.WatchRoutesResponse(
            term=1,
            version=3,
            delta=pb.RouteDelta(
                remove_endpoint_ids=["r@2"],
                fleet=pb.FleetSummary(classes=[pb.FleetClass(gpu_class="L4", total=8)]),
            ),
        )
    )
    assert isinstance(delta, Delta)
    assert delta.remove_endpoints == {"r@2"}
    assert delta.fleet is not None
    assert delta.fleet.classes[0].total == 8
    # An older controller says nothing of the rest: unknown, not 0.
    assert (delta.fleet.nodes, delta.fleet.models, delta.fleet.classes[0].claimed) == (None, None, None)
    with pytest.raises(BadRoutes, match="empty"):
        routes_message(pb.WatchRoutesResponse(term=1, version=3))
