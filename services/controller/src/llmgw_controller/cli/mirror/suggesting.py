"""`llmgwctl mirror suggest`: a catalog entry that would serve a version."""

import json
import textwrap

import click

from llmgw.v1 import mirror_pb2 as pb
from llmgw_controller.cli.mirror.client import TIMEOUT_S, MirrorSession
from llmgw_controller.cli.mirror.fleet import fleet_of
from llmgw_controller.cli.mirror.names import VersionName, resolved, typed
from llmgw_controller.cli.page import WIDTH
from llmgw_controller.cli.terminal import say
from llmgw_kit.text import visible


@click.command("suggest")
@click.argument("name", metavar="MODEL@VERSION", type=VersionName())
@click.pass_obj
def suggest(session: MirrorSession, name: tuple[str, str]) -> None:
    """A catalog entry for a version that is here, as YAML.

    Its comments say what was read and what is guessed. Read it, change it, apply it."""
    known = resolved(session, name)
    fleet = fleet_of(session.controller)
    request = pb.SuggestModelRequest(model=known.model, version=known.version, fleet=fleet.classes)
    answer = session.ask(lambda stub: stub.SuggestModel(request, timeout=TIMEOUT_S))
    if session.output == "json":
        said = {
            "schema": "llmgw.mirror-suggest/1",
            "model": known.model,
            "version": known.version,
            "catalog_yaml": answer.catalog_yaml,
            "notes": list(answer.notes),
            "fleet_unknown": fleet.unknown,
        }
        click.echo(json.dumps(said, ensure_ascii=False))
        return
    # All of it is YAML, so that the whole output can be kept in a file and applied.
    for note in answer.notes:
        # `wrap` makes one blank of each line end, so that nothing of a note is YAML.
        for line in textwrap.wrap(visible(note), WIDTH - 2):
            say(f"# {line}")
    say(answer.catalog_yaml.rstrip("\n"))
    say(
        f"# next: llmgwctl mirror suggest {typed(known.model, known.version)}"
        " | llmgwctl model apply --dry-run -"
    )
