"""The commands that change the catalog."""

import json
from pathlib import Path
from typing import Any

import click

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.changed import DRY_RUN, tell
from llmgw_controller.cli.page import Page, wrapped
from llmgw_controller.cli.session import Commands, Session
from llmgw_controller.cli.shipped import completed, model_shipped, shipped_model, value_in
from llmgw_controller.cli.terminal import say


@click.group(cls=Commands)
def model() -> None:
    """Change the catalog, and what is wished of its models."""


model.add_command(model_shipped)


@model.command("apply")
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "-f", "--file", "named", type=click.Path(path_type=Path, allow_dash=True), help="The same as FILE."
)
@click.option("--dry-run", is_flag=True, help="Check only; nothing is stored.")
@click.option("--strict", is_flag=True, help="Refuse what can never fit the nodes that are known.")
@click.option("--shipped", metavar="NAME", help="A model that comes with this release: model shipped.")
@click.option(
    "--weights",
    type=click.Path(path_type=Path, allow_dash=True),
    help="With --shipped: a file with its `version` and `files`, see docs/catalog.md.",
)
@click.pass_obj
def model_apply(
    session: Session, file: Path | None, named: Path | None, *, dry_run: bool, strict: bool,
    shipped: str | None, weights: Path | None,
) -> None:  # fmt: skip
    """Add or change models from FILE.

    YAML or JSON: one model, or `models: [...]`; - reads stdin."""
    if sum(given is not None for given in (file, named, shipped)) != 1:
        raise click.UsageError("give FILE, or --shipped NAME")
    file = file or named
    if shipped is not None:
        found = [completed(shipped_model(session, shipped), weights)]
    elif weights is not None:
        raise click.UsageError("--weights goes with --shipped; FILE names its own weights")
    else:
        assert file is not None
        found = models_in(file)
    first, *more = [json.dumps(one) for one in found]
    request = pb.ApplyModelRequest(model_json=first, more_model_json=more, dry_run=dry_run, strict=strict)
    said = session.ask(lambda stub: stub.ApplyModel(request, timeout=30))
    for answer in (said, *said.more):
        if session.output == "json":
            click.echo(
                json.dumps(
                    {
                        "schema": "llmgw.model-apply/1",
                        "model": answer.model,
                        "outcome": answer.outcome,
                        "dry_run": dry_run,
                        "store": answer.store,
                        "warnings": list(answer.warnings),
                    },
                    ensure_ascii=False,
                )
            )
            continue
        page = Page(ascii_only=session.ascii_only)
        page.line(f"{answer.model}: {answer.outcome}{' (dry run: nothing was stored)' if dry_run else ''}")
        for warning in answer.warnings:
            wrapped(page, [(" * ", "")], warning)
        page.print()


def models_in(file: Path) -> list[dict[str, Any]]:
    """Raises click's UsageError for what cannot be read or is no model."""
    value = value_in(file)
    if isinstance(value, dict) and set(value) == {"models"}:
        value = value["models"]
    found = value if isinstance(value, list) else [value]
    if not found or not all(isinstance(one, dict) for one in found):
        raise click.UsageError(
            f"{file} holds no model; expected `name: ...` with its profiles, see docs/catalog.md"
        )
    return found


@model.command("remove")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Say what would stop; nothing is removed.")
@click.pass_obj
def model_remove(session: Session, name: str, *, dry_run: bool) -> None:
    """Remove a stored model; its replicas drain and stop."""
    request = pb.RemoveModelRequest(model=name, dry_run=dry_run)
    answer = session.ask(lambda stub: stub.RemoveModel(request, timeout=10))
    stopping = list(answer.stopping_replica_ids)
    if session.output == "json":
        click.echo(
            json.dumps(
                {"schema": "llmgw.model-remove/1", "model": name, "dry_run": dry_run, "stopping": stopping}
            )
        )
        return
    what = "would be removed" if dry_run else "removed"
    say(f"{name}: {what}" + (f"; leaving: {', '.join(stopping)}" if stopping else ""))


@model.command("activate")
@click.argument("name")
@DRY_RUN
@click.pass_obj
def model_activate(session: Session, name: str, *, dry_run: bool) -> None:
    """Start a cold model without waiting for a request.

    It is asked for until it is ready, or for an hour."""
    request = pb.ActivateModelRequest(model=name, dry_run=dry_run)
    answer = session.ask(lambda stub: stub.ActivateModel(request, timeout=10))
    eta = answer.eta_s if answer.HasField("eta_s") else None
    if session.output == "json":
        click.echo(
            json.dumps(
                {
                    "schema": "llmgw.model-activate/1",
                    "model": name,
                    "outcome": answer.outcome,
                    "eta_seconds": eta,
                    "dry_run": dry_run,
                }
            )
        )
        return
    lead = "dry run: " if dry_run else ""
    about = f", about {eta:.0f} s" if eta is not None else ""
    say(f"{lead}{name}: {answer.outcome}{about}")
    if answer.outcome == "waiting":
        say(f"There is no room now; it starts when there is. Next: llmgwctl why {name}")


@model.command("stop")
@click.argument("name")
@DRY_RUN
@click.pass_obj
def model_stop(session: Session, name: str, *, dry_run: bool) -> None:
    """Drain a model, and let nothing start it until `start`.

    Its spec stays."""
    request = pb.StopModelRequest(model=name, dry_run=dry_run)
    answer = session.ask(lambda stub: stub.StopModel(request, timeout=10))
    _print(session, "llmgw.model-stop/1", answer.change, dry_run=dry_run)


@model.command("start")
@click.argument("name")
@DRY_RUN
@click.pass_obj
def model_start(session: Session, name: str, *, dry_run: bool) -> None:
    """Undo `stop`, and forget starts that had failed."""
    request = pb.StartModelRequest(model=name, dry_run=dry_run)
    answer = session.ask(lambda stub: stub.StartModel(request, timeout=10))
    _print(session, "llmgw.model-start/1", answer.change, dry_run=dry_run)


@model.command("pin")
@click.argument("name")
@DRY_RUN
@click.pass_obj
def model_pin(session: Session, name: str, *, dry_run: bool) -> None:
    """Never evict what runs of a model, never let it go as idle."""
    request = pb.PinModelRequest(model=name, pinned=True, dry_run=dry_run)
    answer = session.ask(lambda stub: stub.PinModel(request, timeout=10))
    _print(session, "llmgw.model-pin/1", answer.change, dry_run=dry_run)


@model.command("unpin")
@click.argument("name")
@DRY_RUN
@click.pass_obj
def model_unpin(session: Session, name: str, *, dry_run: bool) -> None:
    """Take the pin away, also one of the spec."""
    request = pb.PinModelRequest(model=name, pinned=False, dry_run=dry_run)
    answer = session.ask(lambda stub: stub.PinModel(request, timeout=10))
    _print(session, "llmgw.model-unpin/1", answer.change, dry_run=dry_run)


def _print(session: Session, schema: str, change: pb.ModelChange, *, dry_run: bool) -> None:
    said = {
        "schema": schema,
        "model": change.model,
        "outcome": change.outcome,
        "dry_run": dry_run,
        "text": change.text,
        "replicas": list(change.replica_ids),
        "warnings": list(change.warnings),
    }
    tell(session, said, change.text, dry_run=dry_run, warnings=change.warnings)
