"""What the controller says of waiting: bounds of a model, and what an engine runs at once."""

from llmgw.v1 import routing_pb2 as pb
from llmgw_router.wire import catalog_entry, endpoint_row


def test_a_tenants_share_that_is_not_said_is_unknown() -> None:
    model = pb.CatalogModel(
        model="m", availability=pb.MODEL_AVAILABILITY_COLD, hold_timeout_s=60, max_held=10
    )
    assert catalog_entry(model).row.max_held_per_tenant is None
    model.max_held_per_tenant = 3
    assert catalog_entry(model).row.max_held_per_tenant == 3
    # Said, and none: no tenant's request may wait.
    model.max_held_per_tenant = 0
    assert catalog_entry(model).row.max_held_per_tenant == 0


def test_a_concurrency_that_is_not_said_is_unknown() -> None:
    endpoint = pb.Endpoint(
        endpoint_id="e@1", replica_id="e", group_epoch=1, model="m", url="http://127.0.0.1:1"
    )
    assert endpoint_row(endpoint).concurrency is None
    endpoint.max_concurrency = 8
    assert endpoint_row(endpoint).concurrency == 8
