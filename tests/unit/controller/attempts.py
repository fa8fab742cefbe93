"""Builders of failed starts, and of stages on which starts fail."""

from dataclasses import replace

from llmgw_controller.core.catalog import spec_hash
from llmgw_controller.core.heard import Exit, ShardState
from llmgw_controller.core.rows import AttemptRow
from llmgw_kit.ids import NodeId, ReplicaId
from tests.unit.controller.build import NOW, Stage, model, node, snapshot

ONE = model(replicas=1)
CRASH = Exit(1, None, "crashed", "CUDA error")


def attempt(one, where, *, number=1, reason="crashed", at=NOW - 1, **changes):
    first = one.profiles[0]
    plain = AttemptRow(
        one.name, first.name, first.gpu_class, spec_hash(one, first), ReplicaId(f"{one.name}/{number}"),
        tuple(NodeId(name) for name in where.split()), reason, f"{reason} with code 1", at,
    )  # fmt: skip
    return replace(plain, **changes)


def with_attempts(snap, *attempts):
    return replace(snap, stored=replace(snap.stored, attempts=attempts))


def fleet(one, names="n1 n2 n3", *attempts):
    return Stage(with_attempts(snapshot([one], [node(name, 1) for name in names.split()]), *attempts))


def where(row):
    return " ".join(str(part.node_id) for part in row.shards)


def end(stage, name="m/1", how=CRASH):
    """Its engine exits, and the next pass sees it."""
    stage.tell(stage.rows[name], ShardState.EXITED, exit=how)
    stage.step(0)
    return stage.rows[name]
