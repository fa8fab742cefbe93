"""`llmgwctl`: what an operator types. What it exits with is told in exits.py."""

import json
import locale
import os
import sys
from importlib.metadata import version as installed_version
from typing import NoReturn

import click

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import (
    bench,
    capacity,
    completion,
    doctor,
    events,
    keys,
    logs,
    model,
    node,
    replica,
    room,
    router,
    show,
    usage,
    weights,
)
from llmgw_controller.cli.client import NoController
from llmgw_controller.cli.exits import EXIT_INTERRUPTED, EXIT_NO_DATA
from llmgw_controller.cli.failure import tell
from llmgw_controller.cli.mirror import group as mirror
from llmgw_controller.cli.session import Commands, Session
from llmgw_controller.cli.terminal import say
from llmgw_kit.addresses import HostPort, parse_host_ports
from llmgw_kit.errors import InvalidRequest, LlmgwError, Unavailable
from llmgw_kit.text import is_storable


def _addresses(_: click.Context, __: click.Parameter, value: str) -> tuple[HostPort, ...]:
    try:
        return parse_host_ports(value, what="--controller")
    except InvalidRequest as e:
        raise click.UsageError("\n".join(e.lines())) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--controller",
    "addresses",
    default="127.0.0.1:7070",
    show_default=True,
    envvar="LLMGW_CONTROLLER",
    callback=_addresses,
    metavar="HOST:PORT[,HOST:PORT]",
    help="Controllers to ask; a standby names the leader.",
)
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--ascii", "ascii_only", is_flag=True, help="Bars in ASCII; also with LC_ALL=C.")
@click.option("--watch", is_flag=True, help="Print again every 2 s until Ctrl-C.")
@click.pass_context
def ctl(
    ctx: click.Context, addresses: tuple[HostPort, ...], output: str, *, ascii_only: bool, watch: bool
) -> None:
    """Operate an llmgw fleet."""
    plain = ascii_only or "utf" not in (locale.getpreferredencoding(False) or "").lower()
    ctx.obj = Session(addresses, output=output, ascii_only=plain, watch=watch)


@ctl.command()
@click.pass_obj
def version(session: Session) -> None:
    """This program's version, and who leads."""
    mine = installed_version("llmgw-controller")
    leader: pb.GetLeaderResponse | None = None
    try:
        leader = session.ask(lambda stub: stub.GetLeader(pb.GetLeaderRequest(), timeout=5))
    except NoController as e:
        if session.output != "json":
            click.echo(f"llmgwctl {mine}")
            raise
        click.echo(json.dumps({"schema": "llmgw.version/1", "version": mine, "error": e.text}))
        sys.exit(EXIT_NO_DATA)
    if session.output == "json":
        found = {
            field: getattr(leader, field) if leader.HasField(field) else None
            for field in ("leader_name", "leader_address", "term")
        }
        answered = {"answered_by": leader.name, "store": leader.store, "config_hash": leader.config_hash}
        click.echo(json.dumps({"schema": "llmgw.version/1", "version": mine} | answered | found))
        return
    click.echo(f"llmgwctl {mine}")
    who = (
        f"{leader.leader_name} at {leader.leader_address}, term {leader.term}"
        if leader.leader_name
        else "nobody"
    )
    say(f"asked {leader.name} at {leader.address}; leader: {who}; store: {leader.store}")


replica.replica.add_command(logs.replica_logs)
for command in (
    *show.ALL,
    events.events,
    doctor.doctor,
    completion.completion,
    *room.ALL,
    model.model,
    replica.replica,
    node.node,
    router.router,
    keys.key,
    usage.usage,
):
    ctl.add_command(command)
for measured in (weights.weights, mirror.mirror, bench.bench, capacity.capacity):
    ctl.add_command(measured)
completion.offer_names(ctl)


def _readable(words: list[str]) -> None:
    """Raises click's UsageError for what no message can carry, before it is somewhere in a request."""
    for word in words:
        if not is_storable(word):
            raise click.UsageError(f"the argument {word!r} is not UTF-8; expected text that is")


def cli() -> NoReturn:
    """Entry point: click's own exits are remapped, and an error is lines, never a traceback."""
    try:
        _readable(sys.argv[1:])
        ctl(prog_name="llmgwctl", standalone_mode=False)
        sys.exit(0)
    except click.exceptions.Exit as e:
        sys.exit(e.exit_code)
    except click.exceptions.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except click.ClickException as e:
        _fail(_usage(e))
    except BrokenPipeError:
        # Whoever read has enough, as `| head` does; nothing is left to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as e:
        _fail(Unavailable(f"the answer cannot be written: {e.strerror or e}"))
    except LlmgwError as e:
        _fail(e)
    except Exception as e:
        if os.environ.get("LLMGW_DEBUG") == "1":
            raise
        what = f"{type(e).__name__}: {str(e)[:200]}".rstrip(": ")
        _fail(
            LlmgwError(
                f"this is a bug of llmgwctl ({what})",
                code="bug",
                next_steps=["where it is: type it again with LLMGW_DEBUG=1 in the environment"],
            )
        )


def _usage(error: click.ClickException) -> LlmgwError:
    """With what to type: where the words do not say, the help of the command that was typed."""
    text = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None or "\n" in text or "did you mean" in text.lower():
        return InvalidRequest(text)
    return InvalidRequest(text, next_steps=[f"try: {context.command_path} --help"])


def _fail(error: LlmgwError) -> NoReturn:
    sys.exit(tell(error, sys.argv[1:]))


if __name__ == "__main__":
    cli()
