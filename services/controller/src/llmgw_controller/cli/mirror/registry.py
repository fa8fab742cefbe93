"""The registry itself: which one the mirror asks, and how it fares (M21)."""

import click

from llmgw.v1 import mirror_pb2 as pb
from llmgw_controller.cli.as_json import Json, opt
from llmgw_controller.cli.exits import EXIT_TROUBLE
from llmgw_controller.cli.mirror.client import TIMEOUT_S, MirrorSession
from llmgw_controller.cli.page import Page, wrapped
from llmgw_controller.cli.text import iso, moment


@click.command("registry")
@click.pass_obj
def registry(session: MirrorSession) -> None:
    """The registry that the mirror asks, and how it fares.

    Says what is known; nothing is asked of the registry."""
    session.show(
        lambda stub: stub.GetRegistry(pb.GetRegistryRequest(), timeout=TIMEOUT_S),
        render_registry,
        registry_json,
    )


def render_registry(page: Page, answer: pb.GetRegistryResponse) -> int:
    """Exit status 1 while its calls fail; none configured is no trouble."""
    if not answer.HasField("base_url"):
        page.line("data 0 s old · no registry is configured: nothing can be searched, URLs can be fetched")
        page.line(("next: set registry_url in the mirror's configuration", "dim"))
        return 0
    page.line(f"data 0 s old · {answer.base_url}, {'with' if answer.has_token else 'without'} a token")
    if not trouble_line(page, answer):
        page.line("No trouble.")
        return 0
    return EXIT_TROUBLE


def trouble_line(page: Page, answer: pb.GetRegistryResponse) -> bool:
    """Its failure on a line of its own (M21), which breaks nothing else. False: there is none."""
    if not answer.HasField("trouble"):
        return False
    # The times are the mirror's own; without a date they read well only on their day.
    now = answer.tried_again_unix_s if answer.HasField("tried_again_unix_s") else answer.trouble_since_unix_s
    text = answer.trouble
    if answer.HasField("trouble_since_unix_s"):
        text += f", since {moment(answer.trouble_since_unix_s, now=now, seconds=True)}"
    if answer.HasField("tried_again_unix_s"):
        text += f", tried again at {moment(answer.tried_again_unix_s, now=now, seconds=True)}"
    wrapped(page, [("!! ", "bold red"), ("registry: ", "")], f"{text}; running fetches go on")
    return True


def registry_json(answer: pb.GetRegistryResponse) -> Json:
    return {
        "schema": "llmgw.mirror-registry/1",
        "base_url": opt(answer, "base_url"),
        "has_token": answer.has_token,
        "trouble": opt(answer, "trouble"),
        "trouble_since": iso(opt(answer, "trouble_since_unix_s")),
        "tried_again": iso(opt(answer, "tried_again_unix_s")),
        "exit_code": EXIT_TROUBLE if answer.HasField("trouble") else 0,
    }
