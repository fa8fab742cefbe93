"""`llmgw-controller`: the command line. What it starts is composed in serving.py.

What only `serve` needs is imported there: a container asks `healthcheck` every few seconds, and loading gRPC
for it would cost more than what is asked.
"""

import gc
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from llmgw_controller.settings import ControllerSettings, check
from llmgw_kit import lifecycle, logs
from llmgw_kit.errors import LlmgwError, StartupError
from llmgw_kit.settings import effective, load

CONFIG_ENV = "LLMGW_CONTROLLER_CONFIG"

#: How seldom cycles are looked for, for `gc.set_threshold`. Rows and words of a fleet live long and hold no
#: cycles; to look through those of 500 nodes as often as is usual made the longest passes half as long again
#: (in the pure core: 118 ms for 79).
GARBAGE = (20_000, 20, 20)

_config = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar=CONFIG_ENV,
    help=f"YAML file of settings; also {CONFIG_ENV}",
)
_admin_listen = click.option(
    "--admin-listen", metavar="H:P", help="health and metrics; default 127.0.0.1:9091"
)
_metrics_listen = click.option(
    "--metrics-listen", metavar="H:P", help="health and metrics only; off by default"
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="llmgw-controller")
def cli() -> None:
    """Catalog, placement, leadership, activation and status of an llmgw fleet."""


@cli.command()
@_config
@click.option("--listen", metavar="H:P", help="gRPC for agents, routers and operators; default 0.0.0.0:7070")
@_admin_listen
@_metrics_listen
@click.option("--advertise", metavar="H:P", help="where others reach this controller")
@click.option("--name", help="in messages and status; default from --advertise")
@click.option("--log-level", help="debug, info, warning, error")
@click.option("--print-config", is_flag=True, help="print the effective settings, secrets masked, and exit")
def serve(config: Path | None, *, print_config: bool, **flags: Any) -> None:
    """Serve until SIGINT or SIGTERM; a second one exits at once."""
    try:
        settings = load(ControllerSettings, config=config, flags=flags)
        check(settings)
        models = settings.configured(config)
        settings.dsn_text()
    except LlmgwError as e:
        _fail(e)
    if print_config:
        click.echo(effective(settings), nl=False)
        return
    logs.configure(level=settings.log_level, style=settings.log_style)
    from llmgw_controller.serving import serve as serve_controller

    gc.set_threshold(*GARBAGE)
    sys.exit(lifecycle.run(lambda: serve_controller(settings, models)))


@cli.command()
@_config
@_admin_listen
@_metrics_listen
def healthcheck(config: Path | None, **flags: Any) -> None:
    """Ask the running controller of this machine whether it is ready: exit 0 yes, 1 no."""
    try:
        settings = load(ControllerSettings, config=config, flags=flags)
    except LlmgwError as e:
        _fail(e)
    fine, text = lifecycle.probe(settings.metrics_address or settings.admin_address)
    click.echo(text)
    sys.exit(0 if fine else 1)


@cli.command()
@_config
def migrate(config: Path | None) -> None:
    """Bring the database's schema up to this release, and exit."""
    try:
        settings = load(ControllerSettings, config=config, flags={})
        dsn = settings.dsn_text()
        if dsn is None:
            raise StartupError(
                "no dsn is set: there is nothing to migrate", next_steps=["set LLMGW_CONTROLLER_DSN"]
            )
    except LlmgwError as e:
        _fail(e)
    logs.configure(level=settings.log_level, style=settings.log_style)
    direct = settings.lease_dsn.get_secret_value() if settings.lease_dsn is not None else dsn
    sys.exit(lifecycle.run(lambda: _migrate(direct, settings.dsn_give_up_s)))


async def _migrate(dsn: str, give_up_s: float) -> int:
    from llmgw_kit.clock import SystemClock
    from llmgw_schema.migrate import migrate_at

    # Waits as `serve` does: a deployment's job may start before its database.
    applied = await migrate_at(dsn, application="llmgw", clock=SystemClock(), give_up_after_s=give_up_s)
    click.echo(f"applied {', '.join(f'{number:04d}' for number in applied)}" if applied else "nothing to do")
    return 0


def _fail(e: LlmgwError) -> NoReturn:
    lifecycle.print_error(e)
    sys.exit(e.exit_status if isinstance(e, StartupError) else 1)


if __name__ == "__main__":
    cli()
