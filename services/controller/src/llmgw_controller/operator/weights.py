"""Weights on the nodes: what is held, brought there, removed."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from llmgw.v1 import agent_pb2, common_pb2
from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.plan import PutEvent, Severity
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.weights_held import (
    WeightsLine,
    holders,
    useful_on,
    users_on,
    weights_lines,
)
from llmgw_controller.operator.desk import Context, Desk
from llmgw_controller.reign import Reign
from llmgw_kit.errors import Conflict, InvalidRequest, LlmgwError, NotFound, Unavailable
from llmgw_kit.ids import NodeId, ReplicaId
from llmgw_kit.names import did_you_mean

log = logging.getLogger(__name__)

#: Of one node. A prefetch is only begun; a removal deletes terabytes.
PREFETCH_S, REMOVE_S = 15.0, 120.0
#: Of a whole call, within what `llmgwctl` waits for: of a large fleet many nodes may say nothing.
ALL_PREFETCH_S, ALL_REMOVE_S = 45.0, 150.0
#: Characters of a version that may stand for the whole: what is removed is not brought back for nothing.
PREFIX_LEAST = 4


class WeightsCalls(Desk):
    """The calls on weights."""

    async def ListWeights(self, request: pb.ListWeightsRequest, context: Context) -> pb.ListWeightsResponse:
        """Who holds what."""
        reign, view = await self._view()
        snapshot = reign.snapshot(reign.ledger.stored)
        # In a thread, as what else looks through the whole fleet.
        lines = await asyncio.to_thread(weights_lines, snapshot)
        if request.HasField("node_id"):
            _known_nodes(snapshot, [request.node_id])
            lines = tuple(line for line in lines if line.node_id == request.node_id)
        if request.HasField("model"):
            model = reign.ledger.catalog.resolve(request.model)
            name = model.name if model is not None else request.model
            lines = tuple(line for line in lines if line.held.model == name)
            if model is None and not lines:
                raise self._no_model(reign, request.model)
        return pb.ListWeightsResponse(
            info=self._info(reign, view), weights=[_line_to_wire(line) for line in lines]
        )

    async def PrefetchWeights(
        self, request: pb.PrefetchWeightsRequest, context: Context
    ) -> pb.PrefetchWeightsResponse:
        """Begin to bring a model's weights to nodes; what comes of it is in ListWeights."""
        reign = await self._reign()
        model = reign.ledger.catalog.resolve(request.model)
        if model is None:
            raise _only_of_the_catalog(self._no_model(reign, request.model))
        weights = model.weights
        if weights is None:
            raise Conflict(
                f"model {model.name} names no weights: there is nothing to fetch", code="no_weights"
            )
        snapshot, now = reign.snapshot(reign.ledger.stored), reign.tenure.now()
        _known_nodes(snapshot, request.node_ids)
        nodes = tuple(NodeId(name) for name in request.node_ids)
        nodes = nodes or await asyncio.to_thread(useful_on, snapshot, model, now)
        if not nodes:
            raise Conflict(
                f"no node could run {model.name} now", code="no_node",
                next_steps=[f"try: llmgwctl why {model.name}"],
            )  # fmt: skip
        if not request.dry_run:
            await _tell_mirror(reign, model)
        ref = common_pb2.WeightsRef(model=model.name, version=weights.version)

        def command(command_id: str) -> agent_pb2.ConnectResponse:
            return agent_pb2.ConnectResponse(
                prefetch_weights=agent_pb2.PrefetchWeights(
                    command_id=command_id, weights=ref, mirror_urls=reign.fleet.mirror_urls
                )
            )

        until = reign.world.clock.monotonic_s() + ALL_PREFETCH_S

        async def one(node_id: NodeId) -> pb.WeightsChange:
            change = pb.WeightsChange(node_id=node_id)
            if _is_complete(snapshot, node_id, model, weights.version):
                change.outcome, change.text = "present", "is there already"
            elif request.dry_run:
                change.outcome, change.text = "asked", "would be fetched"
            else:
                await _ask(reign, change, command, done="asked", within_s=PREFETCH_S, until=until)
            return change

        changes = await asyncio.gather(*(one(node_id) for node_id in sorted(set(nodes))))
        asked = [change.node_id for change in changes if change.outcome == "asked"]
        if asked and not request.dry_run:
            await self._note(
                reign, "weights_prefetch", model.name, f"{weights.version} to {', '.join(asked)}"
            )
        return pb.PrefetchWeightsResponse(model=model.name, version=weights.version, changes=changes)

    async def RemoveWeights(
        self, request: pb.RemoveWeightsRequest, context: Context
    ) -> pb.RemoveWeightsResponse:
        """Delete a version from nodes: from all that were named or from none, if one of them uses it."""
        reign = await self._reign()
        snapshot = reign.snapshot(reign.ledger.stored)
        _known_nodes(snapshot, request.node_ids)
        model, version = _held_version(snapshot, request.model, request.version)
        have = holders(snapshot, model, version)
        nodes = tuple(sorted({NodeId(name) for name in request.node_ids})) or have
        used = await asyncio.to_thread(_users, snapshot, nodes, model, version)
        in_use = {node: users for node, users in used.items() if users}
        if in_use and not request.force:
            told = "; ".join(f"on {node} by {', '.join(users)}" for node, users in in_use.items())
            raise Conflict(
                f"{model} {version} is in use {told}; nothing was removed", code="in_use",
                next_steps=["name the other nodes with --node, or remove it under them with --force"],
            )  # fmt: skip

        def command(command_id: str) -> agent_pb2.ConnectResponse:
            return agent_pb2.ConnectResponse(
                remove_weights=agent_pb2.RemoveWeights(
                    command_id=command_id, model=model, version=version, force=request.force
                )
            )

        until = reign.world.clock.monotonic_s() + ALL_REMOVE_S

        async def one(node_id: NodeId) -> pb.WeightsChange:
            change = pb.WeightsChange(node_id=node_id)
            if node_id not in have:
                change.outcome, change.text = "absent", "is not there"
            elif request.dry_run:
                users = f", under {', '.join(used[node_id])}" if used[node_id] else ""
                change.outcome, change.text = "removed", f"would be removed{users}"
            else:
                await _ask(reign, change, command, done="removed", within_s=REMOVE_S, until=until)
            return change

        changes = await asyncio.gather(*(one(node_id) for node_id in nodes))
        gone = [change.node_id for change in changes if change.outcome == "removed"]
        if gone and not request.dry_run:
            await self._note(reign, "weights_removed", model, f"{version} from {', '.join(gone)}")
        freed = sum(change.freed_bytes for change in changes)
        return pb.RemoveWeightsResponse(model=model, version=version, changes=changes, freed_bytes=freed)

    async def _note(self, reign: Reign, kind: str, subject: str, text: str) -> None:
        """An event of what was done. It was done, whether that can be written down or not."""
        try:
            with self._changing():
                async with reign.ledger.writing():
                    await reign.ledger.commit(
                        [PutEvent(reign.tenure.now(), kind, subject, text, Severity.INFO)]
                    )
        except LlmgwError as e:
            log.warning("%s %s: %s; the event is not written: %s", kind, subject, text, e.text)


def _only_of_the_catalog(unknown: LlmgwError) -> NotFound:
    """A node keeps weights under the catalog's name of them: brought there under the mirror's, which may be
    another, they would be of no use to the model that is applied later."""
    steps = (
        *unknown.next_steps,
        "a version of the mirror becomes one: llmgwctl mirror suggest MODEL@VERSION | llmgwctl model apply -",
    )
    return NotFound(unknown.text, code=unknown.code, next_steps=steps)


async def _tell_mirror(reign: Reign, model: Model) -> None:
    """Before the nodes ask it, so that it knows the version. Raises Unavailable and InvalidRequest."""
    try:
        await reign.world.mirror.fetch(model)
    except Unavailable as e:
        # Where none is configured here, nodes may name their own; one that cannot says so in the list.
        if e.code != "no_mirror":
            raise


async def _ask(
    reign: Reign,
    change: pb.WeightsChange,
    command: Callable[[str], agent_pb2.ConnectResponse],
    *,
    done: str,
    within_s: float,
    until: float,
) -> None:
    """Ask the node, when its turn has come, and write down what it said."""
    clock = reign.world.clock
    try:
        async with reign.fleet.asks.asking_in_turn(NodeId(change.node_id), command, until=until) as ask:
            result = await ask.next(min(within_s, max(0.0, until - clock.monotonic_s())))
    except Unavailable as e:
        change.outcome, change.text = "failed", e.text
        return
    assert isinstance(result, agent_pb2.CommandResult), "weights are answered with a result"
    change.outcome = done if result.accepted else "refused"
    change.text = result.message
    if result.HasField("freed_bytes"):
        change.freed_bytes = result.freed_bytes


def _users(
    snapshot: Snapshot, nodes: Sequence[NodeId], model: str, version: str
) -> dict[NodeId, tuple[ReplicaId, ...]]:
    return {node: users_on(snapshot, node, model, version) for node in nodes}


def _known_nodes(snapshot: Snapshot, names: Sequence[str]) -> None:
    """All or none: one wrong name and nothing is done. Raises NotFound."""
    for name in names:
        if NodeId(name) not in snapshot.stored.nodes:
            raise NotFound(
                f"no node {name}{did_you_mean(name, snapshot.stored.nodes)}", code="node_not_found",
                next_steps=["try: llmgwctl nodes"],
            )  # fmt: skip


def _held_version(snapshot: Snapshot, model: str, version: str) -> tuple[str, str]:
    """The model and version that some connected node holds and that these words mean: a name or an alias, and
    a version or the beginning of one. Raises NotFound, and InvalidRequest for a beginning of several."""
    held = sorted({(one.model, one.version) for heard in snapshot.heard.values() for one in heard.weights})
    if all(name != model for name, _ in held) and (known := snapshot.catalog.resolve(model)) is not None:
        model = known.name
    versions = [found for name, found in held if name == model]
    meant = [version] if version in versions else [one for one in versions if _begins(one, version)]
    if len(meant) == 1:
        return model, meant[0]
    if meant:
        raise InvalidRequest(
            f"{len(meant)} versions of {model} begin with {version}: {', '.join(meant)}",
            code="version_ambiguous",
            next_steps=["type more of it; nothing was removed"],
        )
    if versions:
        step = f"held of {model}: {', '.join(versions)}"
    else:
        step = f"no version of {model} is on any node{did_you_mean(model, [name for name, _ in held])}"
    steps = [step, "try: llmgwctl weights list"]
    if versions and len(version) < PREFIX_LEAST and any(one.startswith(version) for one in versions):
        steps.insert(0, f"the beginning of a version is at least {PREFIX_LEAST} characters")
    raise NotFound(f"no connected node holds {model} {version}", code="weights_not_found", next_steps=steps)


def _begins(version: str, typed: str) -> bool:
    return len(typed) >= PREFIX_LEAST and version.startswith(typed)


def _is_complete(snapshot: Snapshot, node_id: NodeId, model: Model, version: str) -> bool:
    heard = snapshot.heard.get(node_id)
    return heard is not None and any(
        held.complete and (held.model, held.version) == (model.name, version) for held in heard.weights
    )


def _line_to_wire(line: WeightsLine) -> pb.NodeWeights:
    return pb.NodeWeights(
        node_id=line.node_id, model=line.held.model, version=line.held.version, bytes=line.held.size_bytes,
        complete=line.held.complete, used_by=line.used_by, wanted=line.wanted,
        disk_free_bytes=line.disk_free_bytes, fetching=line.held.fetching, progress=line.held.progress,
        error=line.held.error,
    )  # fmt: skip
