"""The view of the whole fleet to llmgw.v1.operator, and the log; every message is filled from one
FleetView. Its rows are in wire_nodes and wire_replicas."""

from collections.abc import Iterable, Sequence

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller import wire_nodes, wire_replicas, wire_room
from llmgw_controller.core.capacity import ClassCapacity, Part, Parts
from llmgw_controller.core.fabrics import FabricLine, LargestFit
from llmgw_controller.core.near import Near
from llmgw_controller.core.plan import Severity
from llmgw_controller.core.risk import NodeLossRisk
from llmgw_controller.core.trouble import Trouble
from llmgw_controller.core.view import FleetView, ModelLine, NodeLine, ReplicaLine
from llmgw_controller.ports import EventRow
from llmgw_controller.wire_rows import Untold, each

#: INFO is no trouble at all: an event of that kind leaves the field unset.
SEVERITY_TO_WIRE = {
    Severity.TROUBLE: pb.TROUBLE_SEVERITY_TROUBLE,
    Severity.NOTE: pb.TROUBLE_SEVERITY_NOTE,
    Severity.INFO: pb.TROUBLE_SEVERITY_UNSPECIFIED,
}


def info(view: FleetView, *, cluster: str, leader_name: str, store: str, rows_age_s: float) -> pb.ViewInfo:
    """First on every view. The age is that of the oldest part: the rows, or a beat."""
    return pb.ViewInfo(
        cluster=cluster,
        at_unix_s=view.at,
        age_s=max(view.age_s, rows_age_s),
        leader_name=leader_name,
        term=view.term,
        store=store,
        learning=view.learning,
    )


def status(
    view: FleetView,
    about: pb.ViewInfo,
    risks: Sequence[NodeLossRisk] | None = None,
    told: wire_replicas.ToldShards | None = None,
) -> pb.GetStatusResponse:
    """Everything of one moment; `risks` may be some seconds older, and None: not looked for. `told`: of
    statuses before, to make this one quicker."""
    memo = told or wire_replicas.ToldShards()
    memo.forget_all_but(view.replicas)
    models, bad_models = each_model(view.models, view.at)
    replicas, bad_replicas = each_replica(view.replicas, view.at, memo)
    return pb.GetStatusResponse(
        info=about,
        trouble=[*map(_untold, (*bad_models, *bad_replicas)), *(_trouble(one) for one in view.trouble)],
        capacity=[_capacity(one) for one in view.capacity],
        fabrics=[_fabric(one) for one in view.fabrics],
        nodes=pb.NodeCounts(
            heard=view.node_counts.heard, silent=view.node_counts.silent, lost=view.node_counts.lost
        ),
        routers=pb.RouterCounts(
            members=view.router_counts.members,
            heard=view.router_counts.heard,
            oldest_report_s=view.router_counts.oldest_report_s,
        ),
        models=models,
        replicas=replicas,
        brake=view.brake,
        risks=[_risk(one) for one in risks or ()],
        risks_known=risks is not None,
        nobody_asked=[wire_room.holding(one) for one in view.holdings.idle],
        suggestions=[wire_room.proposal(one) for one in view.proposals],
    )


def each_model(lines: Iterable[ModelLine], at: float) -> tuple[list[pb.ModelRow], tuple[Untold, ...]]:
    """Those that a message carries, and the others."""
    return each(lines, lambda line: wire_replicas.model(line, at), lambda line: f"model {line.model}")


def each_replica(
    lines: Iterable[ReplicaLine], at: float, memo: wire_replicas.ToldShards | None = None
) -> tuple[list[pb.ReplicaRow], tuple[Untold, ...]]:
    """Those that a message carries, and the others."""
    return each(
        lines,
        lambda line: wire_replicas.replica(line, at, memo),
        lambda line: f"replica {line.row.replica_id}",
    )


def each_node(lines: Iterable[NodeLine], at: float) -> tuple[list[pb.NodeRow], tuple[Untold, ...]]:
    """Those that a message carries, and the others."""
    return each(lines, lambda line: wire_nodes.node(line, at), lambda line: f"node {line.node_id}")


def _untold(one: Untold) -> pb.Trouble:
    return pb.Trouble(
        severity=pb.TROUBLE_SEVERITY_TROUBLE, kind="row_untold", subject=one.subject, text=one.text
    )


def _trouble(one: Trouble) -> pb.Trouble:
    return pb.Trouble(
        severity=SEVERITY_TO_WIRE[one.severity],
        kind=one.kind,
        subject=one.subject,
        text=one.text,
        since_unix_s=one.since,
        fix=one.fix,
        near_miss=_near_miss(one.near) if one.near is not None else None,
        reason=one.reason,
        lost_in_s=one.lost_in_s,
        holds_gpus=one.holds_gpus,
    )


def _near_miss(near: Near) -> pb.TroubleNearMiss:
    return pb.TroubleNearMiss(
        node_id=near.miss.node_id,
        fabric=near.fabric,
        free=near.miss.free,
        of=near.devices,
        evict_replica_ids=list(near.miss.evict),
        nodes_needed=near.nodes_needed,
        nodes_found=near.nodes_found,
    )


def _capacity(one: ClassCapacity) -> pb.ClassCapacity:
    return pb.ClassCapacity(
        gpu_class=one.gpu_class,
        total=one.total,
        parts=_parts(one.parts),
        memory_total_bytes=one.memory_total_bytes,
        memory_free_bytes=one.memory_free_bytes,
    )


def _parts(parts: Parts) -> pb.DeviceParts:
    return pb.DeviceParts(**{part.value: getattr(parts, part.value) for part in Part})


def _fabric(one: FabricLine) -> pb.FabricRow:
    return pb.FabricRow(
        fabric=one.fabric,
        nodes=one.nodes,
        whole_free=one.whole_free,
        whole_free_if_idle_left=one.whole_free_if_idle_left,
        gpu_classes=list(one.gpu_classes),
        largest_fit=_fit_of(one.largest_fit),
        largest_fit_if_idle_left=_fit_of(one.largest_fit_if_idle_left),
    )


def _fit_of(one: LargestFit | None) -> pb.LargestFit | None:
    if one is None:
        return None
    return pb.LargestFit(nodes=one.nodes, gpus_per_node=one.gpus_per_node, gpu_class=one.gpu_class)


def _risk(one: NodeLossRisk) -> pb.NodeLossRisk:
    return pb.NodeLossRisk(node_id=one.node_id, homeless_replica_ids=list(one.homeless), text=one.text)


def event(row: EventRow) -> pb.Event:
    """One line of the log."""
    return pb.Event(
        event_id=row.event_id,
        at_unix_s=row.at,
        term=row.term,
        kind=row.kind,
        subject=row.subject,
        text=row.text,
        severity=SEVERITY_TO_WIRE[row.severity],
    )
