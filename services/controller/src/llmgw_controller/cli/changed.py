"""What the commands that change something share: `--dry-run`, and how a change is told."""

import json
from collections.abc import Sequence
from typing import Any

import click

from llmgw_controller.cli.page import Page, wrapped
from llmgw_controller.cli.session import Session

DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would follow; nothing is changed.")


def tell(
    session: Session, said: dict[str, Any], text: str, *, dry_run: bool, warnings: Sequence[str] = ()
) -> None:
    """`said` for JSON, `text` and a line for each warning for people."""
    if session.output == "json":
        click.echo(json.dumps(said, ensure_ascii=False))
        return
    page = Page(ascii_only=session.ascii_only)
    wrapped(page, [("dry run: ", "") if dry_run else ("", "")], text)
    for warning in warnings:
        wrapped(page, [(" * ", "")], warning)
    page.print()
