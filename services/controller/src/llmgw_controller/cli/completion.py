"""`llmgwctl completion SHELL`: a script for the shell; names of models, replicas and nodes from the leader.

Whoever presses TAB will not wait: the controller has a moment to answer, and without an answer nothing is
offered.
"""

import asyncio
import os
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import loop
from llmgw_controller.cli.client import call_leader
from llmgw_kit.addresses import HostPort, parse_host_ports
from llmgw_kit.errors import LlmgwError

#: From TAB to the names, connecting included.
PATIENCE_S = 0.8

#: Above every bound that names have; one that is longer is not even asked for.
NAME_MOST = 512

_KINDS = frozenset({"model", "replica", "node", "router"})

SHELLS = ("bash", "zsh", "fish")

PROGRAM = "llmgwctl"

_HOW = {
    "bash": f"# In ~/.bashrc: source <({PROGRAM} completion bash)",
    "zsh": f"# In ~/.zshrc: source <({PROGRAM} completion zsh)",
    "fish": f"# In ~/.config/fish/completions/{PROGRAM}.fish: the output of this command",
}


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """A completion script for bash, zsh or fish."""
    found = get_completion_class(shell)
    assert found is not None, f"click does not know {shell}"
    made = found(ctx.find_root().command, {}, PROGRAM, "_LLMGWCTL_COMPLETE")
    click.echo(_HOW[shell])
    # Not `source()`: of bash it asks the bash on the PATH for its version, which need not be the user's.
    click.echo(made.source_template % made.source_vars())


class Names(click.ParamType[str]):
    """Text, with the names of one kind offered for it."""

    name = "text"

    def __init__(self, kind: str) -> None:
        #: "model", "replica", "node" or "router".
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not str(value).strip():
            self.fail(f"{value!r} is no {self.kind}'s name", param, ctx)
        if len(str(value)) > NAME_MOST:
            self.fail(f"a {self.kind} of {len(str(value))} characters; no name is that long", param, ctx)
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names = loop.run(_names(_addresses(ctx), self.kind))
        return [CompletionItem(name) for name in names if name.startswith(incomplete) and name.isprintable()]


def offer_names(group: click.Group) -> None:
    """Give every argument and option that names a model, replica or node its names. What is no plain text
    already stays as it is."""
    for command in group.commands.values():
        if isinstance(command, click.Group):
            offer_names(command)
            continue
        for param in command.params:
            kind = _kind(group, param)
            if kind is not None and isinstance(param.type, click.types.StringParamType):
                param.type = Names(kind)


def _kind(group: click.Group, param: click.Parameter) -> str | None:
    """From what the parameter is called; `NAME` is of its group's kind."""
    name = (param.name or "").removesuffix("s")
    if name in _KINDS:
        return name
    return group.name if name == "name" and group.name in _KINDS else None


def _addresses(ctx: click.Context) -> tuple[HostPort, ...]:
    """As the command line or the environment has them; none where they cannot be understood."""
    value = ctx.find_root().params.get("addresses")
    if isinstance(value, tuple):
        return value
    try:
        return parse_host_ports(
            str(value or os.environ.get("LLMGW_CONTROLLER") or "127.0.0.1:7070"), what="it"
        )
    except LlmgwError:
        return ()


async def _names(addresses: tuple[HostPort, ...], kind: str) -> list[str]:
    async def ask(stub: Any) -> list[str]:
        if kind == "model":
            listed = await stub.ListModels(pb.ListModelsRequest(), timeout=PATIENCE_S)
            return [row.model for row in listed.models]
        if kind == "replica":
            listed = await stub.ListReplicas(pb.ListReplicasRequest(), timeout=PATIENCE_S)
            return [row.replica_id for row in listed.replicas]
        if kind == "router":
            listed = await stub.ListRouters(pb.ListRoutersRequest(), timeout=PATIENCE_S)
            return [row.router_id for row in listed.routers]
        listed = await stub.ListNodes(pb.ListNodesRequest(), timeout=PATIENCE_S)
        return [row.node_id for row in listed.nodes]

    try:
        async with asyncio.timeout(PATIENCE_S):
            return sorted(await call_leader(addresses, ask)) if addresses else []
    except (TimeoutError, LlmgwError):
        return []
