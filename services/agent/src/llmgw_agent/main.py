"""`llmgw-agent`: the command line. What `serve` starts is composed in serving.py.

Imports are made where a command needs them: `supervise` must stay small, and never load gRPC.
"""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from llmgw_kit.errors import LlmgwError

if TYPE_CHECKING:
    from llmgw_agent.settings import AgentSettings

CONFIG_ENV = "LLMGW_AGENT_CONFIG"

_config = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar=CONFIG_ENV,
    help=f"YAML file of settings; also {CONFIG_ENV}",
)
_data_dir = click.option(
    "--data-dir", type=click.Path(path_type=Path), help="the agent's folder; default /var/lib/llmgw/agent"
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="llmgw-agent")
def cli() -> None:
    """Supervises the engines of one node."""


@cli.command()
@_config
@click.option("--node-id", help="name of this node; default its host name")
@click.option("--controller", metavar="H:P[,H:P]", help="controllers to call; default 127.0.0.1:7070")
@_data_dir
@click.option("--admin-listen", metavar="H:P", help="admin pages and metrics; default 127.0.0.1:9092")
@click.option("--metrics-listen", metavar="H:P", help="metrics and health only; off by default")
@click.option("--management-address", help="address or host routers reach this node's engines by")
@click.option("--mirror", metavar="URL[,URL]", help="mirrors to fetch from; default those a shard names")
@click.option(
    "--peer-listen", metavar="H:P", help="give pieces of weights to other nodes here; off by default"
)
@click.option("--hub-listen", metavar="H:P", help="the Hub's protocol on loopback, for HF_ENDPOINT; off")
@click.option("--log-level", help="debug, info, warning, error")
@click.option("--print-config", is_flag=True, help="print the effective settings and exit")
def serve(config: Path | None, print_config: bool, **flags: Any) -> None:  # noqa: FBT001
    """Serve until SIGINT or SIGTERM. Engines go on running and are adopted at the next start."""
    from llmgw_kit import lifecycle, logs
    from llmgw_kit.settings import effective

    settings = _settings(config, flags)
    if print_config:
        click.echo(effective(settings), nl=False)
        return
    logs.configure(level=settings.log_level, style=settings.log_style)
    from llmgw_agent.serving import serve as serve_agent

    sys.exit(lifecycle.run(lambda: serve_agent(settings)))


@cli.command()
@_config
@_data_dir
@click.option("--output", type=click.Choice(["table", "json"]), default="table")
def ps(config: Path | None, output: str, **flags: Any) -> None:
    """What runs on this node, from the journal and /proc; needs no agent and no controller."""
    from llmgw_agent import engines_now

    data_dir = _settings(config, flags).data_dir
    try:
        lines = engines_now.look(data_dir, time.time())
    except LlmgwError as e:
        _fail(e)
    if output == "json":
        click.echo(json.dumps({"shards": [engines_now.plain(line) for line in lines]}, indent=1))
    else:
        click.echo(engines_now.table(lines, data_dir))


@cli.command("stop-all")
@_config
@_data_dir
@click.option("--grace-s", type=float, help="most seconds an engine gets between TERM and KILL")
def stop_all(config: Path | None, grace_s: float | None, **flags: Any) -> None:
    """Stop every engine of the journal: TERM, grace, KILL. For labs, and before a node goes."""
    from llmgw_agent import engines_now

    data_dir = _settings(config, flags).data_dir
    try:
        results = engines_now.stop_all(data_dir, grace_s=grace_s)
    except LlmgwError as e:
        _fail(e)
    for shard, how in results:
        click.echo(f"{shard.spec.shard_id}: {how}")
    click.echo(f"{len(results)} engine{'s'[: len(results) != 1]} stopped")
    sys.exit(0 if all(how.startswith(("stopped", "killed")) for _, how in results) else 1)


@cli.command()
@_config
@_data_dir
def healthcheck(config: Path | None, **flags: Any) -> None:
    """Ask the agent of this machine whether it is ready: exit 0 yes, 1 no."""
    from llmgw_agent.adapters.machine import DataFolder
    from llmgw_kit import lifecycle
    from llmgw_kit.addresses import parse_host_port

    try:
        told = DataFolder(_settings(config, flags).data_dir).listeners()
        # The listener really opened: the port in the settings may be 0, or of another start.
        address = parse_host_port(str(told["admin"]), what="the agent's listener")
    except LlmgwError as e:
        _fail(e)
    fine, text = lifecycle.probe(address)
    click.echo(text)
    sys.exit(0 if fine else 1)


@cli.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED)
def supervise(arguments: tuple[str, ...]) -> None:
    """Run `llmgw-agent ARGUMENTS` (after --) and start it again when it falls; for containers."""
    from llmgw_agent.supervise import supervise as run

    sys.exit(run(arguments))


def _settings(config: Path | None, flags: dict[str, Any]) -> "AgentSettings":
    from llmgw_agent.settings import AgentSettings
    from llmgw_kit.settings import load

    try:
        return load(AgentSettings, config=config, flags=flags)
    except LlmgwError as e:
        _fail(e)


def _fail(e: LlmgwError) -> NoReturn:
    from llmgw_kit import lifecycle

    lifecycle.print_error(e)
    sys.exit(1)


if __name__ == "__main__":
    cli()
