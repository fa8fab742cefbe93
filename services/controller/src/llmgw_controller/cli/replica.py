"""The commands that let replicas go."""

import click

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.changed import DRY_RUN, tell
from llmgw_controller.cli.completion import Names
from llmgw_controller.cli.session import Commands, Session
from llmgw_controller.cli.times import span


@click.group(cls=Commands)
def replica() -> None:
    """Let replicas go; read what their engines printed."""


@replica.command("drain")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--for",
    "whom",
    type=Names("model"),
    metavar="MODEL|SPAN",
    help="MODEL: only if idle, and it alone gets the room. 30m: one comes back then, not before.",
)
@DRY_RUN
@click.pass_obj
def replica_drain(session: Session, names: tuple[str, ...], whom: str | None, *, dry_run: bool) -> None:
    """Take nothing new, finish what runs, stop. All that are named, or none."""
    request = pb.DrainReplicaRequest(replica_id=names[0], more_replica_ids=names[1:], dry_run=dry_run)
    if whom is not None and (away_s := span(whom)) is not None:
        if not away_s:
            raise click.UsageError("--for is 0; expected a model, or a span above 0 such as 30m")
        request.for_s = away_s
    elif whom is not None:
        request.for_model = whom
    answer = session.ask(lambda stub: stub.DrainReplica(request, timeout=10))
    for change in (answer.change, *answer.more):
        _print(session, "llmgw.replica-drain/1", change, dry_run=dry_run)


@replica.command("stop")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@DRY_RUN
@click.pass_obj
def replica_stop(session: Session, names: tuple[str, ...], *, dry_run: bool) -> None:
    """End it now; what it has in flight may be cut short. All that are named, or none."""
    request = pb.StopReplicaRequest(replica_id=names[0], more_replica_ids=names[1:], dry_run=dry_run)
    answer = session.ask(lambda stub: stub.StopReplica(request, timeout=10))
    for change in (answer.change, *answer.more):
        _print(session, "llmgw.replica-stop/1", change, dry_run=dry_run)


def _print(session: Session, schema: str, change: pb.ReplicaChange, *, dry_run: bool) -> None:
    said = {
        "schema": schema,
        "replica": change.replica_id,
        "outcome": change.outcome,
        "dry_run": dry_run,
        "text": change.text,
        "gpus": change.gpus,
        "another": change.another,
    }
    tell(session, said, change.text, dry_run=dry_run)
