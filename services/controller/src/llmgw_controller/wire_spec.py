"""What an agent is told of one engine process: llmgw.v1.ShardSpec, from a row and the catalog."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from textwrap import shorten
from typing import Any

from llmgw.v1 import agent_pb2 as pb
from llmgw.v1 import common_pb2
from llmgw_controller.catalog_schema import ProfileWritten
from llmgw_controller.core.catalog import Model, Profile, spec_hash
from llmgw_controller.core.rows import NodeRow, ReplicaRow, ShardRow
from llmgw_kit.ids import NodeId

#: Time-outs for a replica whose profile left the catalog: those of a profile that says nothing.
WITHOUT_PROFILE = ProfileWritten(engine="command", gpu_class="-", command=["-"])

#: Characters of a value that no message carries, in what is told of it.
SHOWN_MOST = 60


def shard_spec(
    row: ReplicaRow,
    shard: ShardRow,
    model: Model | None,
    nodes: Mapping[NodeId, NodeRow],
    mirror_urls: Sequence[str],
) -> pb.ShardSpec:
    """All an agent needs for one engine process. Raises ValueError or TypeError for what no message carries.

    Where the catalog no longer has what the replica was started from, the spec names the process and its
    time-outs and no more: enough to keep, drain or stop it, and refused by the agent as a start."""
    spec = pb.ShardSpec(
        shard_id=shard.shard_id,
        replica_id=row.replica_id,
        group_epoch=row.group_epoch,
        spec_hash=row.spec_hash,
        model=row.model,
        profile=row.profile,
        device_ids=list(shard.device_ids),
        ports={**dict(shard.ports), **_meeting_place(row)},
        rank=shard.rank,
        world_size=len(row.shards),
        ready_timeout_s=WITHOUT_PROFILE.ready_timeout_s,
        drain_timeout_s=WITHOUT_PROFILE.drain_timeout_s,
        stop_grace_s=WITHOUT_PROFILE.stop_grace_s,
    )
    if row.credential is not None:
        spec.credential = row.credential
    head = nodes.get(row.shards[0].node_id) if len(row.shards) > 1 else None
    if head is not None:
        spec.head_address = head.address
    profile = model.profile(row.profile) if model is not None else None
    if model is None or profile is None:
        return spec
    try:
        _tell(spec, row, model, profile, mirror_urls)
    except (ValueError, TypeError) as e:
        raise ValueError(f"{_culprit(profile)}{e}") from e
    return spec


def _culprit(profile: Profile) -> str:
    """The field of a profile that no message carries: the message itself tells only the value."""
    for one in fields(profile):
        value = getattr(profile, one.name)
        if value is None or one.name not in pb.ShardSpec.DESCRIPTOR.fields_by_name or one.name == "engine":
            continue
        given: dict[str, Any] = {one.name: dict(value) if one.name == "env" else value}
        try:
            pb.ShardSpec(**given)
        except (ValueError, TypeError):
            return f"{one.name} is {shorten(repr(value), SHOWN_MOST, placeholder='…')}: "
    return ""


def _tell(
    spec: pb.ShardSpec, row: ReplicaRow, model: Model, profile: Profile, mirror_urls: Sequence[str]
) -> None:
    spec.ready_timeout_s = profile.ready_timeout_s
    spec.drain_timeout_s = profile.drain_timeout_s
    spec.stop_grace_s = profile.stop_grace_s
    if profile.stop_after_silence_s is not None:
        spec.stop_after_silence_s = profile.stop_after_silence_s
    if spec_hash(model, profile) == row.spec_hash:
        _fill(spec, model, profile, mirror_urls)


def _meeting_place(row: ReplicaRow) -> dict[str, int]:
    """Ranks meet at their head's port, whatever each was leased of that name on its own node."""
    head = next((shard for shard in row.shards if shard.rank == 0), None)
    port = head.port("rendezvous") if head is not None else None
    return {} if port is None else {"rendezvous": port}


def _fill(spec: pb.ShardSpec, model: Model, profile: Profile, mirror_urls: Sequence[str]) -> None:
    """What the engine is started from."""
    spec.engine = profile.engine.value
    spec.served_names.extend([model.name, *model.aliases])
    if model.weights is not None:
        spec.weights.CopyFrom(common_pb2.WeightsRef(model=model.name, version=model.weights.version))
        if model.weights.entry_file is not None:
            spec.weights.entry_file = model.weights.entry_file
        spec.mirror_urls.extend(mirror_urls)
    spec.tensor_parallel = profile.tensor_parallel
    spec.pipeline_parallel = profile.pipeline_parallel
    spec.data_parallel = profile.data_parallel
    if profile.context_length is not None:
        spec.context_length = profile.context_length
    spec.args.extend(profile.args)
    spec.env.update(dict(profile.env))
    spec.command.extend(profile.command)
    if profile.ready_path is not None:
        spec.ready_path = profile.ready_path
