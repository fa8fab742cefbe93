"""The group of `llmgwctl mirror`, and which mirror it asks."""

import click

from llmgw_controller.cli.mirror import (
    bundles,
    downloads,
    fetching,
    finding,
    past,
    removing,
    suggesting,
    versions,
)
from llmgw_controller.cli.mirror.client import MirrorSession
from llmgw_controller.cli.mirror.names import DEFAULT_MIRROR, MIRROR_ENV
from llmgw_controller.cli.session import Commands, Session
from llmgw_kit.addresses import HostPort, parse_host_ports
from llmgw_kit.errors import InvalidRequest


def _addresses(_: click.Context, __: click.Parameter, value: str) -> tuple[HostPort, ...]:
    try:
        return parse_host_ports(value, what="--mirror")
    except InvalidRequest as e:
        raise click.UsageError("\n".join(e.lines())) from None


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
@click.pass_context
def mirror(ctx: click.Context, mirrors: tuple[HostPort, ...]) -> None:
    """Weights inside the cluster: found, fetched, proved, kept."""
    controller = ctx.obj
    assert isinstance(controller, Session), "the group above has made it"
    ctx.obj = MirrorSession(mirrors, controller)


for command in (
    finding.search, finding.files, finding.registry, fetching.fetch, downloads.downloads, versions.versions,
    versions.verify, removing.remove, removing.restore, removing.removed, past.history, bundles.export,
    bundles.import_, bundles.bundles, suggesting.suggest,
):  # fmt: skip
    mirror.add_command(command)
