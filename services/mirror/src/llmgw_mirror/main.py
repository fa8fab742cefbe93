"""`llmgw-mirror`: the command line. What it starts is composed in serving.py.

What only `serve` needs is imported there: a container asks `healthcheck` every few seconds, and loading gRPC
for it would cost more than what is asked.
"""

import json
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from llmgw_kit import lifecycle, logs
from llmgw_kit.addresses import HostPort, parse_host_port
from llmgw_kit.clock import SystemClock
from llmgw_kit.errors import LlmgwError
from llmgw_kit.settings import effective, load
from llmgw_mirror.settings import MirrorSettings

CONFIG_ENV = "LLMGW_MIRROR_CONFIG"

_config = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar=CONFIG_ENV,
    help=f"YAML file of settings; also {CONFIG_ENV}",
)
_data_dir = click.option("--data-dir", type=click.Path(path_type=Path), help="the store")
_http_listen = click.option("--http-listen", metavar="H:P", help="files for nodes; default 0.0.0.0:8071")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="llmgw-mirror")
def cli() -> None:
    """Model weights inside the cluster: fetched once, verified, published, served."""


@cli.command()
@_config
@click.option("--listen", metavar="H:P", help="gRPC; default 0.0.0.0:7071")
@_http_listen
@click.option("--admin-listen", metavar="H:P", help="metrics and debugging; default 127.0.0.1:9093")
@click.option("--metrics-listen", metavar="H:P", help="metrics and health only; off by default")
@_data_dir
@click.option("--log-level", help="debug, info, warning, error")
@click.option("--print-config", is_flag=True, help="print the effective settings, secrets masked, and exit")
def serve(config: Path | None, print_config: bool, **flags: Any) -> None:  # noqa: FBT001
    """Serve until SIGINT or SIGTERM; a second one exits at once."""
    settings = _settings(config, flags)
    if print_config:
        click.echo(effective(settings), nl=False)
        return
    logs.configure(level=settings.log_level, style=settings.log_style)
    from llmgw_mirror.serving import serve as serve_mirror

    sys.exit(lifecycle.run(lambda: serve_mirror(settings)))


@cli.command()
@_config
@_data_dir
@click.option("--quick", is_flag=True, help="compare sizes only; otherwise every byte is read and hashed")
def rescan(config: Path | None, quick: bool, **flags: Any) -> None:  # noqa: FBT001
    """Rebuild what is recorded from the store itself, and prove its content. Exit 1: trouble found."""
    settings = _settings(config, flags)
    logs.configure(level=settings.log_level, style=settings.log_style)

    from llmgw_mirror.rescan import lines
    from llmgw_mirror.rescan import rescan as rescan_store

    async def run() -> int:
        report = await rescan_store(
            settings,
            SystemClock(),
            hash_all=not quick,
            progress=lambda text: click.echo(text, err=True),
        )
        click.echo("\n".join(lines(report)))
        return 0 if report.fine else 1

    sys.exit(lifecycle.run(run))


@cli.command()
@_config
@_data_dir
@_http_listen
def healthcheck(config: Path | None, **flags: Any) -> None:
    """Ask the running mirror of this machine whether it is ready: exit 0 yes, 1 no."""
    settings = _settings(config, flags)
    try:
        fine, text = lifecycle.probe(_listening(settings))
    except LlmgwError as e:
        _fail(e)
    click.echo(text)
    sys.exit(0 if fine else 1)


def _listening(settings: MirrorSettings) -> HostPort:
    """Where the mirror really listens: as it noted at its start, else as configured.

    With TLS the admin listener is asked: this command has no certificate to show."""
    name = "admin" if settings.tls_files else "http"
    configured = settings.admin_address if settings.tls_files else settings.http_address
    record = settings.data_dir / "run" / f"{socket.gethostname()}.json"
    try:
        noted = json.loads(record.read_text())[name]
    except (OSError, ValueError, KeyError):
        return configured
    return configured if configured.port else parse_host_port(noted, what="noted address")


def _settings(config: Path | None, flags: dict[str, Any]) -> MirrorSettings:
    try:
        return load(MirrorSettings, config=config, flags=flags)
    except LlmgwError as e:
        _fail(e)


def _fail(e: LlmgwError) -> NoReturn:
    lifecycle.print_error(e)
    sys.exit(1)


if __name__ == "__main__":
    cli()
