"""Nodes and GPUs as JSON with stable names."""

from llmgw.v1 import agent_pb2
from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.as_json import Json, head, opt
from llmgw_controller.cli.as_json_replicas import idleness
from llmgw_controller.cli.bars import USE_PART
from llmgw_controller.cli.text import iso


def nodes(answer: pb.ListNodesResponse) -> Json:
    now = answer.info.at_unix_s
    return head("nodes", answer.info) | {"nodes": [_node(row, now=now) for row in answer.nodes]}


def _node(row: pb.NodeRow, *, now: float) -> Json:
    return {
        "id": row.node_id,
        "state": pb.NodeState.Name(row.state).removeprefix("NODE_STATE_"),
        "schedulability": pb.Schedulability.Name(row.schedulability).removeprefix("SCHEDULABILITY_").lower(),
        "beat_age_seconds": opt(row, "beat_age_s"),
        "fabrics": list(row.fabrics),
        "pool": opt(row, "pool"),
        "address": row.address,
        "version": row.version,
        "disk_free_bytes": opt(row, "disk_free_bytes"),
        "reason": opt(row, "reason"),
        "replicas": list(row.replica_ids),
        "devices": [device(d, now=now) for d in row.devices],
        "weights": [
            {"model": w.model, "version": w.version, "bytes": w.bytes, "complete": w.complete}
            for w in row.weights
        ],
    }


def gpus(answer: pb.ListDevicesResponse) -> Json:
    now = answer.info.at_unix_s
    return head("gpus", answer.info) | {"gpus": [device(row, now=now) for row in answer.devices]}


def device(row: pb.DeviceRow, *, now: float) -> Json:
    d: agent_pb2.Device = row.device
    return {
        "node": row.node_id,
        "id": d.device_id,
        "index": d.index,
        "class": d.gpu_class,
        "vendor": d.vendor,
        "state": words.device_state(d).upper(),
        "reason": opt(d, "reason"),
        "use": USE_PART[row.use],
        "replica": opt(row, "replica_id"),
        "memory_total_bytes": opt(d, "memory_total_bytes"),
        "memory_used_bytes": opt(d, "memory_used_bytes"),
        "foreign_used_bytes": opt(d, "foreign_used_bytes"),
        "temperature_celsius": opt(d, "temperature_celsius"),
        "power_watts": opt(d, "power_watts"),
        "driver_version": opt(d, "driver_version"),
        "since": iso(opt(d, "since_unix_s")),
        "fault": {
            "class": agent_pb2.FaultClass.Name(d.fault.fault_class).removeprefix("FAULT_CLASS_").lower(),
            "reason": d.fault.reason,
            "text": d.fault.text,
            "at": iso(d.fault.at_unix_s),
        }
        if d.HasField("fault")
        else None,
        "foreign": [
            {"pid": one.pid, "name": one.name, "user": one.user, "memory_bytes": opt(one, "memory_bytes")}
            for one in d.foreign
        ],
        "notes": list(d.notes),
    } | (idleness(row.idleness, now=now) if row.HasField("idleness") else {})
