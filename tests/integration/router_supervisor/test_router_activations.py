"""What is told of a start while requests wait for it, in both directions (M7)."""

import asyncio

from llmgw.v1 import routing_pb2 as pb
from llmgw_kit.testing.clock import FakeClock
from llmgw_router.activations import RENEW_S, Activations
from llmgw_router.relay.ipc import StartPhase

from .routing_bench import BOUND_S, RoutingBench, until
from .test_router_leader import following


async def test_each_word_of_the_leader_on_a_start_reaches_the_workers() -> None:
    async with RoutingBench() as bench, following(bench.address) as one:
        activations = Activations(one.follower, one.workers, FakeClock())
        activations.want("m", 1)
        await until(lambda: len(bench.activations) == 1, "activation")
        for phase in (
            pb.ActivationPhase(phase="fetching", progress=0.25),
            pb.ActivationPhase(phase="loading", eta_s=40),
        ):
            bench.activations[0].answers.put_nowait(pb.ActivateResponse(term=1, phase=phase))
        await until(lambda: len(one.workers.phases) == 2, "phases")
        assert one.workers.phases == [
            StartPhase(model="m", phase="fetching", progress=0.25),
            StartPhase(model="m", phase="loading", eta_s=40.0),
        ]
        await activations.close()


async def test_a_long_start_hears_how_many_wait_by_now() -> None:
    clock = FakeClock()
    async with RoutingBench() as bench, following(bench.address) as one:
        activations = Activations(one.follower, one.workers, clock)
        activations.want("m", 1)
        await until(lambda: len(bench.activations) == 1, "activation")
        # Fifty come at once: one renewal, not fifty calls.
        for waiting in range(2, 51):
            activations.want("m", waiting)
        await clock.advance(RENEW_S)
        await until(lambda: len(bench.activations) == 2, "renewed activation")
        assert bench.activations[1].request.waiting == 50
        async with asyncio.timeout(BOUND_S):
            await bench.activations[0].ended.wait()
        # One more is no news; half of them leaving is.
        activations.want("m", 51)
        await clock.advance(RENEW_S)
        await clock.advance(RENEW_S)
        assert len(bench.activations) == 2
        activations.want("m", 25)
        await clock.advance(RENEW_S)
        await until(lambda: len(bench.activations) == 3, "renewed again")
        assert bench.activations[2].request.waiting == 25
        activations.unwant("m")
        async with asyncio.timeout(BOUND_S):
            await bench.activations[2].ended.wait()
        await clock.advance(RENEW_S)
        assert len(bench.activations) == 3
        await activations.close()
