"""`llmgw-lab`, run by `make lab`: everything on this machine, one question to a cold model, then yours."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import click

from llmgw_kit.errors import LlmgwError
from llmgw_kit.testing.processes import Cage, ChildFailed
from llmgw_lab import checks, leftovers
from llmgw_lab.layout import Layout


@click.command()
@click.option("--once", is_flag=True, envvar="ONCE", help="End with exit 0 after the answer.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Path(".lab"),
    show_default=True,
    envvar="LAB_DIR",
    help="Everything is written below it; make lab-clean removes it.",
)
@click.option(
    "--model",
    type=click.Choice(["smollm2", "tiny"]),
    default="smollm2",
    show_default=True,
    envvar="LAB_MODEL",
    help="Which cold model the first question goes to.",
)
@click.option(
    "--free-ports",
    is_flag=True,
    envvar="LAB_FREE_PORTS",
    help="Let the system choose all ports, so that several labs can run.",
)
def cli(once: bool, folder: Path, model: str, free_ports: bool) -> None:  # noqa: FBT001 - click's flags
    """Bring up the whole suite on this machine and answer a first request from a cold model.

    Ports are the documented ones; LAB_<PART>_PORT moves one (LAB_ROUTER_PORT=18080).
    """
    folder = folder.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        checks.require_lab_folder(folder)
        with checks.lock_folder(folder), Cage() as cage:
            ended = leftovers.end_leftovers(folder)
            if ended:
                click.echo(f"ended {len(ended)} processes that an earlier lab left behind: {ended}")
            checks.clear_folder(folder)
            checks.require_disk(folder)
            if free_ports:
                layout = checks.free_layout(folder)
            else:
                layout = Layout(folder, checks.chosen_ports(os.environ))
            checks.require_free_ports(layout.ports)
            status = asyncio.run(_until_told(cage, layout, model, once=once))
    except LlmgwError as problem:
        fail(*problem.lines())
    except ChildFailed as problem:
        fail(str(problem))
    except OSError as problem:
        fail(f"{problem.filename or folder}: {problem.strerror or problem}")
    leftovers.end_leftovers(folder)
    sys.exit(status)


def fail(first: str, *rest: str) -> None:
    """Say it on stderr and exit 1; the cage is closed already, nothing runs."""
    click.echo(f"lab: {first}", err=True)
    for line in rest:
        click.echo(line, err=True)
    sys.exit(1)


async def _until_told(cage: Cage, layout: Layout, model: str, *, once: bool) -> int:
    """Run the lab; a signal ends it. Returns the exit status."""
    # Here, not at the top: it imports grpc, and a taken port should be told before that takes its time.
    from llmgw_lab.session import Session

    loop = asyncio.get_running_loop()
    told: list[signal.Signals] = []
    session = Session(cage, layout, model)
    work = asyncio.create_task(session.run(once=once), name="lab")

    def on_signal(number: signal.Signals) -> None:
        if told:
            os._exit(128 + number)  # a second one: the cage sees us gone and ends everything at once
        told.append(number)
        work.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal, number)
    try:
        await asyncio.wait({work})
        if not told:
            work.result()
            return 0
        click.echo(f"\n{told[0].name}: stopping; a second one ends at once")
        # Up and told to end is the lab's normal end; cut short before its answer it has failed at its job.
        return 0 if session.answered else 128 + told[0]
    finally:
        await session.close()
