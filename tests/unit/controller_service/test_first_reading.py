"""A leader that has not read its rows yet: nothing is said of models it cannot know."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from llmgw.v1 import operator_pb2, routing_pb2
from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.adapters.store_memory import MemoryStore
from llmgw_controller.catalog_file import canonical_json, parse_models
from llmgw_controller.core.plan import PutModel
from llmgw_controller.office import Office
from llmgw_controller.reign import Reign
from llmgw_controller.servicer_operator import OperatorServicer
from llmgw_controller.servicer_routing import RoutingServicer
from llmgw_kit.testing.clock import FakeClock

from .reigns import KEPT, reign_on


async def new_term_over_a_stored_model(clock: FakeClock) -> Reign:
    """Its row is written, and not yet read by this leader."""
    lease = MemoryLease(clock)
    store = MemoryStore(lease)
    reign = await reign_on(clock, store, lease=lease, models=())
    (model,) = parse_models([KEPT], where="test")
    await store.commit(reign.tenure.term, [PutModel(model.name, canonical_json(model), 5.0)])
    return reign


def office_of(reign: Reign) -> Office:
    """Leads, whoever asks."""
    return cast("Office", SimpleNamespace(require=lambda: reign, reign=reign, clock=reign.world.clock))


async def read_rows(reign: Reign) -> None:
    async with reign.ledger.writing():
        pass


async def test_a_router_that_asks_a_new_leader_waits_for_the_stored_catalog(fake_clock: FakeClock) -> None:
    reign = await new_term_over_a_stored_model(fake_clock)
    request = routing_pb2.ActivateRequest(router_id="r", model="tiny", waiting=1)
    answers = RoutingServicer(office_of(reign)).Activate(request, cast("Any", None))
    first = asyncio.ensure_future(anext(answers))
    await asyncio.sleep(0)
    assert not first.done()
    await read_rows(reign)
    assert (await first).phase.phase == "placing"
    await answers.aclose()


async def test_an_operator_who_asks_a_new_leader_waits_for_the_stored_catalog(fake_clock: FakeClock) -> None:
    reign = await new_term_over_a_stored_model(fake_clock)
    servicer = OperatorServicer(office_of(reign), store_kind="memory", config_hash="x")
    request = operator_pb2.ActivateModelRequest(model="tiny")
    asking = asyncio.ensure_future(servicer.ActivateModel(request, None))
    await asyncio.sleep(0)
    assert not asking.done()
    await read_rows(reign)
    assert (await asking).outcome == "starting"
