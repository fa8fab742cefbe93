"""The group of `llmgwctl mirror`, and which mirror it asks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from llmgw_controller.cli.mirror import (
    bundles,
    downloads,
    fetching,
    finding,
    past,
    registry,
    removing,
    suggesting,
    versions,
)
from llmgw_controller.cli.mirror.client import MirrorSession, tls_of
from llmgw_controller.cli.mirror.names import DEFAULT_MIRROR, MIRROR_ENV
from llmgw_controller.cli.session import Commands, Session
from llmgw_kit.addresses import HostPort, parse_host_ports
from llmgw_kit.errors import InvalidRequest


def _addresses(_: click.Context, __: click.Parameter, value: str) -> tuple[HostPort, ...]:
    try:
        return parse_host_ports(value, what="--mirror")
    except InvalidRequest as e:
        raise click.UsageError("\n".join(e.lines())) from None


def _file(flag: str, variable: str, text: str) -> Callable[[Any], Any]:
    """The variables are the program's own: those of the mirror itself begin with LLMGW_MIRROR_, and one that
    it does not know stops its start."""
    return click.option(flag, type=click.Path(path_type=Path), envvar=variable, help=text)


@click.group(cls=Commands)
@click.option(
    "--mirror",
    "mirrors",
    default=DEFAULT_MIRROR,
    show_default=True,
    envvar=MIRROR_ENV,
    callback=_addresses,
    metavar="HOST:PORT[,HOST:PORT]",
    help="Mirrors to ask, the first that can be reached.",
)
@_file("--tls-ca", "LLMGWCTL_MIRROR_CA", "PEM authorities that the mirror's certificate must be of.")
@_file("--tls-cert", "LLMGWCTL_MIRROR_CERT", "PEM certificate to show, where the mirror asks for one.")
@_file("--tls-key", "LLMGWCTL_MIRROR_KEY", "Its key.")
@click.option("--tls-name", help="What the mirror's certificate calls it, where that is not its host.")
@click.pass_context
def mirror(
    ctx: click.Context, mirrors: tuple[HostPort, ...], tls_ca: Path | None, tls_cert: Path | None,
    tls_key: Path | None, tls_name: str | None,
) -> None:  # fmt: skip
    """Weights inside the cluster: found, fetched, proved, kept."""
    controller = ctx.obj
    assert isinstance(controller, Session), "the group above has made it"
    ctx.obj = MirrorSession(mirrors, controller, tls=tls_of(tls_ca, tls_cert, tls_key, tls_name))


for command in (
    finding.search, finding.files, registry.registry, fetching.fetch, downloads.downloads, versions.versions,
    versions.verify, removing.remove, removing.restore, removing.removed, past.history, bundles.export,
    bundles.import_, bundles.bundles, suggesting.suggest,
):  # fmt: skip
    mirror.add_command(command)
