"""Models that come with a release: `model shipped`, and what `model apply --shipped` makes of one."""

import json
import sys
from pathlib import Path
from typing import Any

import click
import yaml

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.page import Column, Page, table, wrapped
from llmgw_controller.cli.session import Session
from llmgw_kit.errors import InvalidRequest, NotFound
from llmgw_kit.names import did_you_mean

WEIGHTS_STEP = "write their version and files as docs/catalog.md has it, then add --weights FILE"


@click.command("shipped")
@click.argument("name", required=False)
@click.pass_obj
def model_shipped(session: Session, name: str | None) -> None:
    """Models that come with this release.

    With NAME, that one as YAML, but for its weights."""
    found = [shipped_model(session, name)] if name is not None else _all(session)
    if session.output == "json":
        said = [
            {
                "name": one.name,
                "description": one.description,
                "gpu_classes": list(one.gpu_classes),
                "model": json.loads(one.model_json),
            }
            for one in found
        ]
        click.echo(json.dumps({"schema": "llmgw.model-shipped/1", "models": said}, ensure_ascii=False))
        return
    page = Page(ascii_only=session.ascii_only)
    if name is not None:
        wrapped(page, [("# ", "dim")], found[0].description)
        for line in yaml.safe_dump(json.loads(found[0].model_json), sort_keys=False).splitlines():
            page.line(line)
        page.line((f"# next: llmgwctl model apply --shipped {found[0].name} --weights FILE", "dim"))
    else:
        columns = [Column("MODEL", most=32), Column("GPUS", most=28), Column("WHAT", most=34)]
        table(page, columns, [(one.name, ", ".join(one.gpu_classes), one.description) for one in found])
        page.line(("next: llmgwctl model shipped NAME", "dim"))
    page.print()


def shipped_model(session: Session, name: str) -> pb.ShippedModel:
    """Raises NotFound with the nearest name."""
    found = {one.name: one for one in _all(session)}
    if name not in found:
        raise NotFound(
            f"no shipped model {name}{did_you_mean(name, found)}",
            code="model_not_found",
            next_steps=["try: llmgwctl model shipped"],
        )
    return found[name]


def completed(one: pb.ShippedModel, weights: Path | None) -> dict[str, Any]:
    """The model with the weights that a file names. Raises InvalidRequest without them: a release that made
    them up would be believed."""
    if weights is None:
        raise InvalidRequest(
            f"{one.name} comes without its weights: which revision, files and checksums is yours to choose "
            f"({one.description})",
            code="weights_missing",
            next_steps=[WEIGHTS_STEP],
        )
    value = value_in(weights)
    if isinstance(value, dict) and set(value) == {"weights"}:
        value = value["weights"]
    return {**json.loads(one.model_json), "weights": value}


def value_in(file: Path) -> Any:
    """YAML or JSON of a file, or of stdin for `-`. Raises click's UsageError."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        value = yaml.safe_load(text)
        # YAML has dates, sets and binary as well, which no model has.
        json.dumps(value)
    except OSError as e:
        raise click.UsageError(f"{file} cannot be read: {e.strerror}") from None
    except RecursionError:
        raise click.UsageError(f"{file} is nested too deep to be a model; see docs/catalog.md") from None
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise click.UsageError(f"{file} is neither YAML nor JSON: {e}") from None
    except (TypeError, ValueError) as e:
        raise click.UsageError(f"{file} holds what JSON has not: {e}") from None
    return value


def _all(session: Session) -> list[pb.ShippedModel]:
    answer = session.ask(lambda stub: stub.ListShippedModels(pb.ListShippedModelsRequest(), timeout=10))
    return sorted(answer.models, key=lambda one: one.name)
