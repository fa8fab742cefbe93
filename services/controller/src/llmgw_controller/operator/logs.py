"""What engines printed, from their nodes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from llmgw.v1 import agent_pb2
from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.rows import ReplicaRow
from llmgw_controller.operator.desk import Context, Desk
from llmgw_controller.ports import Fenced
from llmgw_controller.reign import Reign
from llmgw_kit.errors import LlmgwError, NotFound
from llmgw_kit.ids import NodeId, ReplicaId, ShardId
from llmgw_kit.lifecycle import cancel_all
from llmgw_kit.names import did_you_mean

#: From the question to the agent's first word, and of a log that is not followed to each next one.
ANSWER_S = 15.0

Place = tuple[int, ShardId, NodeId]
Responses = AsyncGenerator[pb.ReadReplicaLogsResponse, None]


class Logs(Desk):
    """Logs of replicas."""

    async def ReadReplicaLogs(
        self, request: pb.ReadReplicaLogsRequest, context: Context
    ) -> AsyncIterator[pb.ReadReplicaLogsResponse]:
        """The end of each shard's log, and on while it is followed. Ends when all shards' logs have."""
        reign = await self._reign()
        places = _places(reign, request)
        for _, shard_id, _ in places:
            # Before anything is printed, whose lines there will be.
            yield pb.ReadReplicaLogsResponse(shard_id=shard_id)
        try:
            if request.follow and len(places) > 1:
                found = _merged(reign, places, request)
            else:
                found = _in_turn(reign, places, request)
            async with aclosing(found) as responses:
                async for response in responses:
                    yield response
        except Fenced:
            raise self._office.not_leading() from None


def _places(reign: Reign, request: pb.ReadReplicaLogsRequest) -> list[Place]:
    """Its shards by rank, also exited ones. Raises NotFound."""
    stored, name = reign.ledger.stored, ReplicaId(request.replica_id)
    row = stored.replicas.get(name)
    found = (
        {shard.shard_id: (shard.rank, shard.shard_id, shard.node_id) for shard in row.shards} if row else {}
    )
    if not found:
        # Its row is gone, or waits to be placed again; an agent may still hold what ran.
        found = {
            report.shard_id: (_rank(report.shard_id), report.shard_id, node_id)
            for node_id, heard in reign.fleet.heard().items()
            for report in heard.shards.values()
            if report.replica_id == name
        }
    if not found:
        raise _nothing(row, name, list(stored.replicas))
    places = sorted(found.values())
    if not request.HasField("rank"):
        return places
    chosen = [place for place in places if place[0] == request.rank]
    if not chosen:
        ranks = ", ".join(str(rank) for rank, _, _ in places)
        raise NotFound(
            f"{name} has no shard of rank {request.rank}; it has {ranks}", code="rank_not_found",
            next_steps=[f"all of them: llmgwctl replica logs {name}"],
        )  # fmt: skip
    return chosen


def _rank(shard_id: ShardId) -> int:
    last = shard_id.rpartition(".")[2]
    return int(last) if last.isdigit() else 0


def _nothing(row: ReplicaRow | None, name: ReplicaId, known: list[ReplicaId]) -> LlmgwError:
    if row is None:
        return NotFound(
            f"no replica {name}{did_you_mean(name, known)}", code="replica_not_found",
            next_steps=["try: llmgwctl replicas"],
        )  # fmt: skip
    return NotFound(
        f"{name} is {row.phase.value} and was placed nowhere: no engine has printed anything", code="no_log",
        next_steps=[f"try: llmgwctl why {row.model}"],
    )  # fmt: skip


async def _in_turn(reign: Reign, places: list[Place], request: pb.ReadReplicaLogsRequest) -> Responses:
    """One shard after another: its lines stay together."""
    for place in places:
        async with aclosing(_shard(reign, place, request)) as responses:
            async for response in responses:
                yield response


async def _merged(reign: Reign, places: list[Place], request: pb.ReadReplicaLogsRequest) -> Responses:
    """All shards at once, as lines come. Holds one response: what waits, waits in each ask's own buffer."""
    ready: asyncio.Queue[pb.ReadReplicaLogsResponse | Exception | None] = asyncio.Queue(maxsize=1)

    async def pump(place: Place) -> None:
        try:
            async with aclosing(_shard(reign, place, request)) as responses:
                async for response in responses:
                    await ready.put(response)
        except Exception as e:  # raised again by whoever reads
            await ready.put(e)
        else:
            await ready.put(None)

    tasks = [asyncio.create_task(pump(place), name=f"log of {place[1]}") for place in places]
    left = len(tasks)
    try:
        while left:
            response = await ready.get()
            if isinstance(response, Exception):
                raise response
            if response is None:
                left -= 1
            else:
                yield response
    finally:
        await cancel_all(*tasks)


async def _shard(reign: Reign, place: Place, request: pb.ReadReplicaLogsRequest) -> Responses:
    """One shard's log to its end. What is wrong with it is its last word: others may have more to say."""
    _, shard_id, node_id = place

    def command(command_id: str) -> agent_pb2.ConnectResponse:
        return agent_pb2.ConnectResponse(
            read_logs=agent_pb2.ReadLogs(
                command_id=command_id, shard_id=shard_id, tail_lines=request.tail_lines, follow=request.follow
            )
        )

    try:
        async with reign.fleet.asks.asking(node_id, command) as ask:
            within_s: float | None = ANSWER_S
            while True:
                reply = await ask.next(within_s)
                if not isinstance(reply, agent_pb2.LogPiece):
                    # An agent that cannot read the command at all answers with a result.
                    yield pb.ReadReplicaLogsResponse(shard_id=shard_id, end=f"{node_id}: {reply}")
                    return
                if reply.data or reply.gap:
                    yield pb.ReadReplicaLogsResponse(shard_id=shard_id, data=reply.data, gap=reply.gap)
                if reply.end:
                    end = reply.error if reply.HasField("error") else ""
                    yield pb.ReadReplicaLogsResponse(shard_id=shard_id, end=end)
                    return
                within_s = None if request.follow else ANSWER_S
    except Fenced:
        raise
    except LlmgwError as e:
        yield pb.ReadReplicaLogsResponse(shard_id=shard_id, end=e.text)
