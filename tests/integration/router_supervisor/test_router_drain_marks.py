"""A drain that is taken back, as a router process sees it: put aside, used again, put aside anew."""

import asyncio
from pathlib import Path

from llmgw.v1 import routing_pb2 as pb
from llmgw_kit.testing.processes import Cage

from .process import ask, engine, running
from .routing_bench import BOUND_S, RoutingBench, endpoint, model, until

COLD, READY = pb.MODEL_AVAILABILITY_COLD, pb.MODEL_AVAILABILITY_READY


async def test_an_endpoint_whose_drain_was_taken_back_serves_again_and_drains_anew(
    cage: Cage, tmp_path: Path
) -> None:
    """What waits meanwhile is held, not lost, and each mark gets a word of its own version (cases 12, 18)."""
    flags = ["--router-id", "r1", "--state-dir", str(tmp_path / "state")]
    async with RoutingBench(term=3) as bench, engine(cage, tmp_path, "m") as url:
        bench.put(endpoint("m/1@1", "m", url), models=(model("m", READY),))
        async with running(cage, tmp_path, "--controller", str(bench.address), *flags) as router:
            await router.ready()
            assert (await ask(router, "m")).status == 200

            bench.put(endpoint("m/1@1", "m", url, draining=True), models=(model("m", COLD),))
            first = bench.version
            await until(lambda: _drained(bench, first), "word of the first drain")
            asking = asyncio.create_task(ask(router, "m"))
            await until(lambda: len(bench.activations) == 1, "activation")

            bench.put(endpoint("m/1@1", "m", url), models=(model("m", READY),))
            back = bench.version
            assert (await asyncio.wait_for(asking, BOUND_S)).status == 200
            await until(lambda: bench.acks[-1].version >= back, "word of the routes without the mark")
            assert not bench.acks[-1].drained_endpoint_ids
            assert (await ask(router, "m")).status == 200

            # Taken off and put back before anybody could look: the second mark is a drain of its own.
            bench.put(endpoint("m/1@1", "m", url, draining=True))
            bench.put(endpoint("m/1@1", "m", url))
            bench.put(endpoint("m/1@1", "m", url, draining=True), models=(model("m", COLD),))
            second = bench.version
            await until(lambda: _drained(bench, second), "word of the second drain")
            early = [one for one in bench.acks if back <= one.version < second and one.drained_endpoint_ids]
            assert all(one.version == second - 2 for one in early), (
                "no word of a drain from between the marks"
            )


def _drained(bench: RoutingBench, version: int) -> bool:
    return any(one.version >= version and list(one.drained_endpoint_ids) == ["m/1@1"] for one in bench.acks)
