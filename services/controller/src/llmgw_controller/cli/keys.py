"""The commands on API keys: `llmgwctl key create`, `list` and `revoke`."""

import json
import time
from typing import Any

import click

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.as_json import head, opt
from llmgw_controller.cli.changed import DRY_RUN, tell
from llmgw_controller.cli.page import Column, Page, table, wrapped
from llmgw_controller.cli.session import Commands, Session
from llmgw_controller.cli.text import ago, count, iso, joined, moment
from llmgw_controller.cli.times import Span
from llmgw_controller.cli.views.common import first_line


@click.group(cls=Commands)
def key() -> None:
    """API keys: who may use the models through the routers."""


@key.command("create")
@click.argument("label", metavar="NAME")
@click.option("--tenant", metavar="PATH", help="Whose it is, such as acme/research.")
@click.option("--model", "models", multiple=True, help="It may use only this one; repeatable.")
@click.option("--profile", "profiles", multiple=True,
              help="Routing profiles it may ask for; the first is its default; repeatable.")  # fmt: skip
@click.option("--explain", is_flag=True, help="It may see why a request went where it went.")
@click.option("--expires", type=Span(), metavar="SPAN", help="It ends so long from now: 12h, 90d.")
@DRY_RUN
@click.pass_obj
def key_create(
    session: Session,
    label: str,
    tenant: str | None,
    models: tuple[str, ...],
    profiles: tuple[str, ...],
    expires: float | None,
    *,
    explain: bool,
    dry_run: bool,
) -> None:
    """Make a key; NAME tells it from others. The key is shown once and kept nowhere."""
    request = pb.CreateKeyRequest(
        name=label, tenant=tenant, models=models, profiles=profiles, explain=explain, dry_run=dry_run
    )
    if expires is not None:
        request.expires_unix_s = time.time() + expires
    answer = session.ask(lambda stub: stub.CreateKey(request, timeout=10))
    if session.output == "json":
        said = {"schema": "llmgw.key-create/1", **key_json(answer.key), "dry_run": dry_run}
        said |= {"key": opt(answer, "secret"), "warnings": list(answer.warnings)}
        click.echo(json.dumps(said, ensure_ascii=False))
        return
    page = Page(ascii_only=session.ascii_only)
    row = answer.key
    if dry_run:
        wrapped(page, [("dry run: ", "")], f"would create a key {row.name} for {_scope(row)}")
    else:
        page.line(answer.secret)
        wrapped(page, [], f"created {row.key_id} ({row.name}) for {_scope(row)}")
        page.line("this is the only time that the key is shown")
    for warning in answer.warnings:
        wrapped(page, [(" * ", "")], warning)
    if not dry_run:
        page.line((f"next, if it leaks: llmgwctl key revoke {row.key_id}", "dim"))
    page.print()


@key.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those that are revoked or expired.")
@click.pass_obj
def key_list(session: Session, *, everything: bool) -> None:
    """Keys, newest first; never the keys themselves."""

    def render(page: Page, answer: pb.ListKeysResponse) -> int:
        render_keys(page, answer)
        return 0

    request = pb.ListKeysRequest(all=everything)
    session.show(lambda stub: stub.ListKeys(request, timeout=10), render, keys_json)


@key.command("revoke")
@click.argument("which", metavar="ID")
@DRY_RUN
@click.pass_obj
def key_revoke(session: Session, which: str, *, dry_run: bool) -> None:
    """Refuse a key from now on; ID may be shortened, or be the beginning that `key list` shows."""
    request = pb.RevokeKeyRequest(key_id=which, dry_run=dry_run)
    answer = session.ask(lambda stub: stub.RevokeKey(request, timeout=10))
    said = {"schema": "llmgw.key-revoke/1", "id": answer.key.key_id, "dry_run": dry_run, "text": answer.text}
    tell(session, said, answer.text, dry_run=dry_run)


def render_keys(page: Page, answer: pb.ListKeysResponse) -> None:
    now = answer.info.at_unix_s
    good = sum(one.state == "good" for one in answer.keys)
    gone = len(answer.keys) - good
    first_line(page, answer.info, count(good, "good key") + (f", {gone} revoked or expired" if gone else ""))
    if not answer.keys:
        page.line("no key was made yet; next: llmgwctl key create NAME")
        return
    columns = [
        Column(""), Column("ID"), Column("BEGINS", most=16), Column("NAME", most=16),
        Column("TENANT", most=14), Column("MODELS", most=14), Column("MADE"), Column("ENDS"),
    ]  # fmt: skip
    rows = [
        (
            ("", "") if one.state == "good" else (" -", "dim"),
            one.key_id,
            one.prefix,
            one.name,
            one.tenant if one.HasField("tenant") else "-",
            joined(list(one.models), most=2) if one.models else "all",
            ago(one.created_unix_s, now=now),
            _end(one, now),
        )
        for one in answer.keys
    ]
    table(page, columns, rows)


def _end(one: pb.ApiKeyRow, now: float) -> str:
    if one.state == "revoked":
        return "revoked"
    if not one.HasField("expires_unix_s"):
        return "never"
    return "expired" if one.state == "expired" else moment(one.expires_unix_s, now=now)


def _scope(row: pb.ApiKeyRow) -> str:
    models = joined(list(row.models)) if row.models else "all models"
    until = f", until {iso(row.expires_unix_s)}" if row.HasField("expires_unix_s") else ""
    return f"{models}{f' of {row.tenant}' if row.HasField('tenant') else ''}{until}"


def keys_json(answer: pb.ListKeysResponse) -> dict[str, Any]:
    return head("keys", answer.info) | {"keys": [key_json(one) for one in answer.keys]}


def key_json(one: pb.ApiKeyRow) -> dict[str, Any]:
    return {
        "id": one.key_id,
        "begins": one.prefix,
        "name": one.name,
        "tenant": opt(one, "tenant"),
        "models": list(one.models) or None,
        "profiles": list(one.profiles) or None,
        "explain": one.explain,
        "created": iso(one.created_unix_s),
        "expires": iso(opt(one, "expires_unix_s")),
        "revoked": iso(opt(one, "revoked_unix_s")),
        "state": one.state,
    }
