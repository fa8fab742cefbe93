"""Versions as they are shown and as they are typed: a commit by its first characters, which the mirror
makes whole again."""

import asyncio
import os
import re
import shlex
from typing import Any

import click
from click.shell_completion import CompletionItem

from llmgw.v1 import mirror_pb2 as pb
from llmgw_controller.cli import loop
from llmgw_controller.cli.completion import NAME_MOST, PATIENCE_S
from llmgw_controller.cli.mirror.client import TIMEOUT_S, MirrorSession, Tls, call_mirror, tls_of
from llmgw_kit.addresses import HostPort, parse_host_ports
from llmgw_kit.errors import LlmgwError

DEFAULT_MIRROR = "127.0.0.1:7071"
MIRROR_ENV = "LLMGW_MIRROR"

#: A commit is known by so many characters; JSON has all 40.
_COMMIT_SHOWN = 7
_COMMIT = re.compile(r"[0-9a-f]{40}")
#: The mirror takes no shorter beginning of a version.
BEGINNING_LEAST = 4


def short(version: str) -> str:
    """Of a commit its beginning; other names are as long as somebody wanted them."""
    return version[:_COMMIT_SHOWN] if _COMMIT.fullmatch(version) else version


def label(model: str, version: str) -> str:
    """`qwen3-14b @ 40c0698`, to be read."""
    return f"{model} @ {short(version)}"


def typed(model: str, version: str) -> str:
    """`qwen3-14b@40c0698`, to be typed: quoted where a shell would take it apart."""
    return shlex.quote(f"{model}@{short(version)}")


class VersionName(click.ParamType[tuple[str, str]]):
    """`MODEL@VERSION`, the version perhaps by its beginning."""

    name = "model@version"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        text = str(value)
        # The last one divides: a model may have an @ in its name, a version's is seldom more than a word.
        model, at, version = text.rpartition("@")
        if not at or not model.strip() or not version.strip():
            self.fail(
                f"{text[:80]!r} is not MODEL@VERSION\n  what is here: llmgwctl mirror versions", param, ctx
            )
        if len(text) > NAME_MOST:
            self.fail(f"a name of {len(text)} characters; no name is that long", param, ctx)
        return model.strip(), version.strip()

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names = [f"{model}@{version}" for model, version in _known(ctx)]
        return [CompletionItem(name) for name in names if name.startswith(incomplete) and name.isprintable()]


class ModelName(click.ParamType[str]):
    """A model of the mirror, which need not be one of the catalog."""

    name = "model"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text.strip() or len(text) > NAME_MOST:
            self.fail(f"{text[:80]!r} is no model's name", param, ctx)
        return text

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names = sorted({model for model, _ in _known(ctx)})
        return [CompletionItem(name) for name in names if name.startswith(incomplete) and name.isprintable()]


def resolved(session: MirrorSession, name: tuple[str, str]) -> pb.WeightsVersion:
    """The version that a name means. Raises what the mirror says of one that is unknown or means several."""
    model, version = name
    request = pb.ResolveVersionRequest(model=model, version=version)
    return session.ask(lambda stub: stub.ResolveVersion(request, timeout=TIMEOUT_S)).version


def _known(ctx: click.Context) -> list[tuple[str, str]]:
    """Asked by a shell: nobody waits for it, and without an answer nothing is offered."""

    async def ask(stub: Any) -> list[tuple[str, str]]:
        answer = await stub.ListVersions(pb.ListVersionsRequest(), timeout=PATIENCE_S)
        return sorted((one.model, short(one.version)) for one in answer.versions)

    async def bounded(addresses: tuple[HostPort, ...], tls: Tls | None) -> list[tuple[str, str]]:
        async with asyncio.timeout(PATIENCE_S):
            return await call_mirror(addresses, ask, tls=tls)

    try:
        flags = [_of_group(ctx, name) for name in ("tls_ca", "tls_cert", "tls_key", "tls_name")]
        return loop.run(bounded(_addresses(ctx), tls_of(*flags)))
    except (TimeoutError, LlmgwError):
        return []


def _addresses(ctx: click.Context) -> tuple[HostPort, ...]:
    """As the command line or the environment has them. Raises InvalidRequest."""
    value = _of_group(ctx, "mirrors")
    if isinstance(value, tuple):
        return value
    return parse_host_ports(str(value or os.environ.get(MIRROR_ENV) or DEFAULT_MIRROR), what="--mirror")


def _of_group(ctx: click.Context, name: str) -> Any:
    """A parameter of the command or of a group above it."""
    looked: click.Context | None = ctx
    while looked is not None and name not in looked.params:
        looked = looked.parent
    return None if looked is None else looked.params[name]
