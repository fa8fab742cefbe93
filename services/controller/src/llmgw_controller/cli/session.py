"""What every command shares: whom to ask, how to print, and the nearest name to a mistyped one."""

import abc
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import click

from llmgw_controller.cli import loop
from llmgw_controller.cli.client import call_leader
from llmgw_controller.cli.page import Page
from llmgw_controller.cli.watch import Watch
from llmgw_kit.addresses import HostPort
from llmgw_kit.names import did_you_mean

if TYPE_CHECKING:
    from llmgw.v1.operator_pb2_grpc import OperatorServiceAsyncStub

S = TypeVar("S")
T = TypeVar("T")
Render = Callable[[Page, T], int]


class Asking(abc.ABC, Generic[S]):
    """Where to ask and how to print, from the group's flags. S: the stub of whom is asked."""

    def __init__(
        self, addresses: tuple[HostPort, ...], *, output: str, ascii_only: bool, watch: bool
    ) -> None:
        self.addresses = addresses
        self.output = output
        # Python itself speaks UTF-8 under LC_ALL=C (PEP 540), so the encoding alone does not tell.
        self.ascii_only = ascii_only or os.environ.get("LC_ALL") in ("C", "POSIX")
        self.watch = watch

    def ask(self, call: Callable[[S], Awaitable[T]]) -> T:
        """For a command that is done once. Raises click's UsageError where it was to be watched."""
        self.only_once()
        return self.look(call)

    @abc.abstractmethod
    def look(self, call: Callable[[S], Awaitable[T]]) -> T:
        """May be repeated."""

    def only_once(self) -> None:
        """A change that is made again every two seconds is nobody's wish."""
        if self.watch:
            raise click.UsageError("--watch goes with the views, such as status, and this is none")

    def show(
        self, call: Callable[[S], Awaitable[T]], render: Render[T], to_json: Callable[[T], Any]
    ) -> NoReturn:
        """Ask once and print, and exit with what `render` returns; with --watch again and again."""
        if self.watch:
            Watch(self).run(call, render, to_json)
        answer = self.look(call)
        page = Page(ascii_only=self.ascii_only)
        code = render(page, answer)
        if self.output == "json":
            click.echo(json.dumps(to_json(answer), ensure_ascii=False, indent=2))
        else:
            page.print()
        sys.exit(code)


class Session(Asking["OperatorServiceAsyncStub"]):
    """With the controllers, of which the leader is asked."""

    def look(self, call: Callable[["OperatorServiceAsyncStub"], Awaitable[T]]) -> T:
        return loop.run(call_leader(self.addresses, call))


class Commands(click.Group):
    """A group that names the nearest command to a mistyped one, and whose own options may stand
    anywhere: people add `--output json` at the end of the line that they typed before."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            raise click.UsageError(
                f"no command given; expected one of {', '.join(self.list_commands(ctx))}\n"
                f"  try: {ctx.command_path} --help",
                ctx,
            )
        return super().parse_args(ctx, self._own_first(ctx, args))

    def _own_first(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The group's options before all else, each in its order; what follows `--` stays as it is."""
        flags = {
            name: param.is_flag
            for param in self.params
            if isinstance(param, click.Option)
            for name in param.opts
        }
        own: list[str] = []
        rest: list[str] = []
        waiting = iter(args)
        for arg in waiting:
            if arg == "--":
                rest += [arg, *waiting]
            elif arg.partition("=")[0] not in flags:
                rest.append(arg)
            else:
                own.append(arg)
                if not flags[arg.partition("=")[0]] and "=" not in arg:
                    value = next(waiting, None)
                    if value is None and ctx.resilient_parsing:
                        break  # A shell asks what could stand there.
                    if value is None:
                        raise click.BadOptionUsage(arg, f"Option {arg!r} requires an argument.")
                    own.append(value)
        return own + rest

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            near = _elsewhere(ctx, args[0]) or did_you_mean(args[0], self.list_commands(ctx))
            raise click.UsageError(f"no such command {args[0]!r}{near}", ctx) from None


def _elsewhere(ctx: click.Context, name: str) -> str:
    """Where a command stands that was looked for in another group, such as `model uncordon`; or nothing."""
    root = ctx.find_root().command
    groups = root.commands.values() if isinstance(root, click.Group) else ()
    found = [one.name for one in groups if isinstance(one, click.Group) and name in one.commands]
    return f" (did you mean '{found[0]} {name}'?)" if len(found) == 1 else ""
