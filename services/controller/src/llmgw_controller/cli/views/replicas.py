"""`llmgwctl replicas`, `shards` and `models`."""

from collections import Counter
from textwrap import shorten

from llmgw.v1 import operator_pb2 as pb
from llmgw.v1 import routing_pb2
from llmgw_controller.cli import words
from llmgw_controller.cli.page import Column, Page, Piece, table, wrapped
from llmgw_controller.cli.text import ago, count, duration, joined
from llmgw_controller.cli.views.common import first_line, idle_for, marked, number

SHOWN = 20
#: Characters of what a probe was answered: some servers answer with a page.
PROBE_MOST = 160
_TROUBLE = (pb.REPLICA_PHASE_UNPLACEABLE, pb.REPLICA_PHASE_FAILED, pb.REPLICA_PHASE_BACKOFF)


def render_replicas(page: Page, answer: pb.ListReplicasResponse, *, every: bool) -> None:
    now = answer.info.at_unix_s
    rows = sorted(answer.replicas, key=lambda r: (_rank(r), r.replica_id))
    tally = Counter("out of reach" if r.unreachable else words.phase_name(r).lower() for r in rows)
    summary = ", ".join(
        f"{n} {word}" for word, n in sorted(tally.items(), key=lambda item: (-item[1], item[0]))
    )
    first_line(page, answer.info, count(len(rows), "replica") + (f": {summary}" if rows else ""))
    if not rows:
        page.line("no model is up; a request for a cold one starts it: llmgwctl models")
        return
    columns = [
        Column("   REPLICA", most=35),
        Column("PHASE"),
        Column("NODES", most=26),
        Column("GPUS", right=True),
        Column("IN FLIGHT", right=True),
        Column("IDLE FOR", right=True),
        Column("LAST ASKED"),
    ]
    shown = rows if every else rows[:SHOWN]
    table(
        page,
        columns,
        [
            (
                marked(_mark(r), r.replica_id),
                words.phase(r),
                joined(sorted({s.node_id for s in r.shards}), most=3),
                str(r.gpus),
                number(r, "in_flight"),
                _idle_for(r, now),
                _asked(r, now),
            )
            for r in shown
        ],
    )
    if hidden := rows[len(shown) :]:
        fine = all(r.phase == pb.REPLICA_PHASE_READY and words.idleness(r.idleness) == "busy" for r in hidden)
        page.line(f"… {len(hidden)} more{', all ready and busy' if fine else ''}.  llmgwctl replicas --all")
    for r in shown:
        _notes(page, r, now)
    unknown = [r for r in rows if _up(r) and words.idleness(r.idleness) == "unknown"]
    if unknown:
        reasons = " · ".join(
            f"{r.replica_id} {words.unknown_reason(r.idleness.unknown_reason)}" for r in unknown[:4]
        )
        more = f" · {len(unknown) - 4} more" if len(unknown) > 4 else ""
        wrapped(page, [("Idle for -: ", "")], reasons + more)


def _notes(page: Page, r: pb.ReplicaRow, now: float) -> None:
    """What a cell has no room for."""
    told = []
    if r.HasField("reason"):
        until = r.HasField("until_unix_s") and r.phase == pb.REPLICA_PHASE_BACKOFF
        told.append(r.reason + (f", again in {duration(r.until_unix_s - now)}" if until else ""))
    if r.HasField("probe_error"):
        said = shorten(r.probe_error, PROBE_MOST, placeholder=" …")
        told.append(f"{'up, but its probe fails' if _up(r) else 'probing'}: {said}")
    if r.HasField("stalled_s"):
        told.append(f"no token for {duration(r.stalled_s)} while requests run")
    for text in told:
        wrapped(page, [(f"{r.replica_id}: ", "dim")], text)


def _up(r: pb.ReplicaRow) -> bool:
    return r.phase in (pb.REPLICA_PHASE_READY, pb.REPLICA_PHASE_DRAINING)


def _rank(r: pb.ReplicaRow) -> int:
    if r.unreachable or r.phase in _TROUBLE:
        # Waiting without a failed start, as where an operator holds it back, is nobody's trouble.
        return 1 if r.phase == pb.REPLICA_PHASE_BACKOFF and not r.restarts and not r.unreachable else 0
    if _up(r) and words.idleness(r.idleness) == "unknown":
        return 1
    busy = r.phase == pb.REPLICA_PHASE_READY and words.idleness(r.idleness) == "busy"
    return 3 if busy else 2


def _mark(r: pb.ReplicaRow) -> Piece:
    return (("!!", "bold red"), (" *", ""), ("", ""), ("", ""))[_rank(r)]


def _idle_for(r: pb.ReplicaRow, now: float) -> str:
    return idle_for(r.idleness, now=now) if _up(r) else ""


def _asked(r: pb.ReplicaRow, now: float) -> str:
    if r.idleness.never_asked:
        return "never"
    return ago(r.last_asked_unix_s if r.HasField("last_asked_unix_s") else None, now=now)


def render_shards(page: Page, answer: pb.ListReplicasResponse) -> None:
    rows = sorted(answer.replicas, key=lambda r: r.replica_id)
    first_line(page, answer.info, count(sum(len(r.shards) for r in rows), "shard"))
    if not any(r.shards for r in rows):
        page.line("no engine runs and none is being started; see: llmgwctl replicas")
        return
    columns = [
        Column("SHARD", most=32),
        Column("NODE", most=20),
        Column("STATE"),
        Column("GPUS", most=24),
        Column("PORTS", most=24),
        Column("PID", right=True),
        Column("RUNNING", right=True),
        Column("LOADED IN", right=True),
    ]
    table(page, columns, [_shard(s) for r in rows for s in sorted(r.shards, key=lambda s: s.shard_id)])


def _shard(s: pb.ShardRow) -> tuple[str, ...]:
    heard = s.observed if s.HasField("observed") else None
    state = words.shard_state(s) + (", adopted" if heard is not None and heard.adopted else "")
    return (
        s.shard_id,
        s.node_id,
        state,
        ", ".join(s.device_ids),
        ", ".join(f"{name} {port}" for name, port in sorted(s.ports.items())),
        str(heard.pid) if heard is not None and heard.HasField("pid") else "-",
        str(heard.running_requests) if heard is not None and heard.HasField("running_requests") else "-",
        duration(heard.load_s) if heard is not None and heard.HasField("load_s") else "-",
    )


_MODEL_RANK = {
    routing_pb2.MODEL_AVAILABILITY_UNAVAILABLE: 0,
    routing_pb2.MODEL_AVAILABILITY_STARTING: 1,
    routing_pb2.MODEL_AVAILABILITY_READY: 2,
    routing_pb2.MODEL_AVAILABILITY_COLD: 3,
}


def render_models(page: Page, answer: pb.ListModelsResponse) -> None:
    now = answer.info.at_unix_s
    rows = sorted(answer.models, key=lambda m: (_MODEL_RANK.get(m.availability, 0), m.model))
    first_line(page, answer.info, count(len(rows), "model"))
    if not rows:
        page.line("the catalog is empty; add one: llmgwctl model apply FILE (see docs/catalog.md)")
        return
    columns = [
        Column("MODEL", most=32),
        Column("STATE", most=24),
        Column("WANTED", right=True),
        Column("READY", right=True),
        Column("IN FLIGHT", right=True),
        Column("HELD", right=True),
        Column("LAST ASKED"),
        Column("GPUS", right=True),
    ]
    table(page, columns, [*(_model(m, now) for m in rows), _total(rows)])
    for m in rows:
        if m.HasField("reason") and m.availability == routing_pb2.MODEL_AVAILABILITY_UNAVAILABLE:
            # A reason that is told to clients as well begins with the model already.
            wrapped(page, [(f"{m.model}: ", "dim")], m.reason.removeprefix(f"{m.model}: "))


def _model(m: pb.ModelRow, now: float) -> tuple[str | Piece, ...]:
    return (
        m.model,
        _state(m),
        str(m.wanted),
        str(m.ready),
        number(m, "in_flight"),
        str(m.held),
        ago(m.last_asked_unix_s if m.HasField("last_asked_unix_s") else None, now=now),
        str(m.gpus),
    )


def _total(rows: list[pb.ModelRow]) -> tuple[str, ...]:
    """A sum with an unknown part is unknown."""
    flights = [m.in_flight for m in rows if m.HasField("in_flight")]
    return (
        str(len(rows)),
        "",
        str(sum(m.wanted for m in rows)),
        str(sum(m.ready for m in rows)),
        str(sum(flights)) if len(flights) == len(rows) else "-",
        str(sum(m.held for m in rows)),
        "",
        str(sum(m.gpus for m in rows)),
    )


def _state(m: pb.ModelRow) -> str | Piece:
    if m.stopped:
        return "stopped"
    if m.availability == routing_pb2.MODEL_AVAILABILITY_UNAVAILABLE:
        return ("!! down", "bold red")
    if m.availability == routing_pb2.MODEL_AVAILABILITY_STARTING:
        word = m.reason or "starting"
        return f"{word}, ~{duration(m.eta_s)}" if m.HasField("eta_s") else word
    word = words.availability(m.availability)
    idleness = words.idleness(m.idleness) if m.HasField("idleness") else ""
    told = f"{word}, {idleness}" if idleness in ("idle", "unknown") else word
    return f"{told}, pinned" if m.pinned else told
