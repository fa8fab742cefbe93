"""`llmgwctl replica logs`: what a replica's engines printed, from their nodes."""

import json
import sys

import click

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.exits import EXIT_TROUBLE
from llmgw_controller.cli.session import Session
from llmgw_controller.cli.stream import each
from llmgw_controller.cli.terminal import Lines, say
from llmgw_kit.errors import Unavailable
from llmgw_kit.text import in_one_line

MISSING = "lines are missing here: the log was cut, or was not read fast enough"


@click.command("logs")
@click.argument("name", metavar="REPLICA")
@click.option("--rank", type=click.IntRange(0, 65_535), help="Only this shard's; 0 is the one that answers.")
@click.option("--tail", type=click.IntRange(0, 10_000), default=100, show_default=True, help="Last lines.")
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C, or until the engine ends.")
@click.pass_obj
def replica_logs(session: Session, name: str, rank: int | None, tail: int, *, follow: bool) -> None:
    """What a replica's engines printed, also one that has exited. Control characters are shown as ^X."""
    request = pb.ReadReplicaLogsRequest(replica_id=name, rank=rank, tail_lines=tail, follow=follow)
    printer = _AsJson() if session.output == "json" else _AsText()
    try:
        session.ask(lambda stub: each(stub.ReadReplicaLogs(request), printer.take))
    except Unavailable as e:
        if follow and e.code == "interrupted":
            go_on = f"go on, a few lines before the end: llmgwctl replica logs {name} --follow --tail 20"
            raise Unavailable(e.text, code=e.code, next_steps=[*e.next_steps, go_on]) from None
        raise
    sys.exit(printer.finish())


class _AsText:
    """Lines as they come; of several shards each line is led by its shard."""

    def __init__(self) -> None:
        self._lines: dict[str, Lines] = {}
        self._failed = False
        self._any = False

    def take(self, message: pb.ReadReplicaLogsResponse) -> None:
        lines = self._lines.setdefault(message.shard_id, Lines())
        if message.gap:
            self._print(message.shard_id, lines.rest())
            say(f"-- {message.shard_id}: {MISSING} --")
        if message.data:
            self._print(message.shard_id, lines.take(message.data))
        if message.HasField("end"):
            self._print(message.shard_id, lines.rest())
            if message.end:
                self._failed = True
                say(f"!! {message.shard_id}: {message.end}", err=True)
        sys.stdout.flush()

    def _print(self, shard_id: str, lines: list[str]) -> None:
        lead = f"{in_one_line(shard_id)} | " if len(self._lines) > 1 else ""
        for line in lines:
            self._any = True
            click.echo(lead + line)

    def finish(self) -> int:
        if not self._any and not self._failed:
            click.echo("nothing was printed", err=True)
        return EXIT_TROUBLE if self._failed else 0


class _AsJson:
    """One object a line, as they come."""

    def __init__(self) -> None:
        self._failed = False
        self._lines: dict[str, Lines] = {}

    def take(self, message: pb.ReadReplicaLogsResponse) -> None:
        lines = self._lines.setdefault(message.shard_id, Lines())
        if message.gap:
            self._print(message.shard_id, lines.rest())
            self._say({"shard": message.shard_id, "gap": True})
        self._print(message.shard_id, lines.take(message.data))
        if message.HasField("end"):
            self._print(message.shard_id, lines.rest())
            self._failed = self._failed or bool(message.end)
            self._say({"shard": message.shard_id, "end": True, "error": message.end or None})
        sys.stdout.flush()

    def _print(self, shard_id: str, lines: list[str]) -> None:
        for line in lines:
            self._say({"shard": shard_id, "line": line})

    def _say(self, said: dict[str, object]) -> None:
        click.echo(json.dumps({"schema": "llmgw.replica-logs/1", **said}))

    def finish(self) -> int:
        return EXIT_TROUBLE if self._failed else 0
