"""`llmgw-router`: the command line. What it starts is composed in serving.py.

What only one command needs is imported there: a container asks `healthcheck` every few seconds, and loading
gRPC for it would cost more than what is asked; and no relay worker is started before `serve` has loaded this.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from llmgw_kit import lifecycle, logs
from llmgw_kit.errors import LlmgwError
from llmgw_kit.settings import effective, load
from llmgw_router.core.keys import RANDOM_BYTES, digest_of, key_of
from llmgw_router.settings import RouterSettings, check, with_flag_endpoints
from llmgw_router.settings_keys import DIGEST_PREFIX, file_warning

CONFIG_ENV = "LLMGW_ROUTER_CONFIG"

_config = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar=CONFIG_ENV,
    help=f"YAML file of settings; also {CONFIG_ENV}",
)
_listen = click.option(
    "--listen", metavar="H:P", help="client API; 127.0.0.1:8080, or 0.0.0.0:8080 if keys guard it"
)
_metrics_listen = click.option(
    "--metrics-listen", metavar="H:P", help="metrics and health only; off by default"
)


class _Cli(click.Group):
    """Commands whose module is loaded when they are called, or listed."""

    _elsewhere: Final = {"drill": "drill_command", "drill-engine": "drill_engine_command"}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self._elsewhere])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._elsewhere:
            return super().get_command(ctx, cmd_name)
        from llmgw_router import commands_drill

        found: click.Command = getattr(commands_drill, self._elsewhere[cmd_name])
        return found


@click.group(cls=_Cli, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="llmgw-router")
def cli() -> None:
    """OpenAI-compatible API in front of engine replicas."""


@cli.command()
@_config
@_listen
@click.option("--admin-listen", metavar="H:P", help="admin pages and metrics; default 127.0.0.1:9090")
@_metrics_listen
@click.option("--controller", metavar="H:P[,H:P]", help="controllers to follow")
@click.option(
    "--endpoint",
    "endpoints",
    metavar="id=URL=model[,model]",
    multiple=True,
    help="router-only mode: an engine to serve from; repeatable, adds to the file's endpoints",
)
@click.option("--workers", type=int, help="relay worker processes; default one a CPU")
@click.option(
    "--redis-url", help="where activity is noted; better by LLMGW_ROUTER_REDIS_URL[_FILE] if secret"
)
@click.option("--router-id", help="stable name of this router; default HOSTNAME-PORT")
@click.option("--state-dir", type=click.Path(path_type=Path), help="where the last routes are kept")
@click.option("--drain-s", type=float, help="seconds that what runs may take at a graceful stop; default 30")
@click.option(
    "--insecure", is_flag=True, default=None, help="serve beyond loopback although no key guards it"
)
@click.option("--log-level", help="debug, info, warning, error")
@click.option("--print-config", is_flag=True, help="print the effective settings, secrets masked, and exit")
def serve(config: Path | None, endpoints: tuple[str, ...], print_config: bool, **flags: Any) -> None:  # noqa: FBT001
    """Serve until SIGINT or SIGTERM; a second one cuts what runs after 2 s, a third exits at once.

    SIGHUP, and any change of the file, puts its settings in force; see check-config."""

    def read() -> RouterSettings:
        settings = with_flag_endpoints(load(RouterSettings, config=config, flags=flags), endpoints)
        check(settings)
        return settings

    try:
        settings = with_flag_endpoints(load(RouterSettings, config=config, flags=flags), endpoints)
        if print_config:
            # Shown before it is judged: whoever asks may be looking for what is missing.
            shown = settings.model_copy(update={"listen": str(settings.client_address)})
            click.echo(effective(shown), nl=False)
        check(settings)
    except LlmgwError as e:
        _fail(e)
    if print_config:
        return
    logs.configure(level=settings.log_level, style=settings.log_style)
    if (wrong := file_warning(settings.keys, config)) is not None:
        logging.getLogger(__name__).warning("%s", wrong)
    from llmgw_router.reload import Source
    from llmgw_router.serving import serve as serve_router

    sys.exit(lifecycle.run(lambda: serve_router(settings, Source(read, config))))


@cli.command("check-config")
@_config
@click.option("--output", type=click.Choice(["table", "json"]), default="table", help="table or json")
def check_config(config: Path | None, output: str) -> None:
    """Say whether `serve` would take this file (and the environment): exit 0 yes, 1 no, 64 no file given."""
    if config is None:
        click.echo("error: no file to check\n  next: llmgw-router check-config --config FILE", err=True)
        sys.exit(64)
    from llmgw_router.checking import checked, print_checked

    sys.exit(print_checked(checked(config), output=output))


@cli.command()
@_config
@_listen
@_metrics_listen
def healthcheck(config: Path | None, **flags: Any) -> None:
    """Ask the running router of this machine whether it is ready: exit 0 yes, 1 no."""
    try:
        settings = load(RouterSettings, config=config, flags=flags)
    except LlmgwError as e:
        _fail(e)
    fine, text = lifecycle.probe(settings.metrics_address or settings.client_address)
    click.echo(text)
    sys.exit(0 if fine else 1)


@cli.group()
def key() -> None:
    """API keys of a router that has no database; with one, see llmgwctl key create."""


@key.command()
def new() -> None:
    """Print a new key, and its digest for `keys:` in the file. The key is shown once and kept nowhere."""
    made = key_of(os.urandom(RANDOM_BYTES))
    digest = digest_of(made.encode()).hex()
    click.echo(f"key     {made}")
    click.echo(f"digest  {DIGEST_PREFIX}{digest}")
    click.echo("next: give the key to its user, and write the digest into the file that --config names:")
    click.echo(f"  keys:\n    - id: key-{digest[:8]}\n      digest: {DIGEST_PREFIX}{digest}")


def _fail(e: LlmgwError) -> None:
    lifecycle.print_error(e)
    sys.exit(1)


if __name__ == "__main__":
    cli()
