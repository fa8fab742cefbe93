"""`llmgwctl doctor`: each controller asked by itself, then the leader's comparison of all witnesses."""

import asyncio
import json
import sys
from dataclasses import dataclass

import click

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import as_json_explained, loop
from llmgw_controller.cli.client import NoController, call_leader, call_one
from llmgw_controller.cli.exits import EXIT_NO_DATA, EXIT_TROUBLE
from llmgw_controller.cli.page import Page
from llmgw_controller.cli.session import Session
from llmgw_controller.cli.views import doctor as view
from llmgw_kit.addresses import HostPort, parse_host_port
from llmgw_kit.errors import InvalidRequest, LlmgwError

#: One controller's own word on who leads.
LEADER_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Asked:
    """What one address answered, or why it did not."""

    address: HostPort
    word: pb.GetLeaderResponse | None
    error: str | None


@click.command()
@click.pass_obj
def doctor(session: Session) -> None:
    """Compare what database, agents and routers say.

    Exits 1 if any of it disagrees."""
    session.only_once()
    asked, answer, error = loop.run(_ask(session.addresses))
    between = view.between(asked)
    trouble = bool(between) or (answer is not None and view.is_trouble(answer))
    code = EXIT_NO_DATA if answer is None else EXIT_TROUBLE if trouble else 0
    if session.output == "json":
        value = as_json_explained.doctor(answer) if answer is not None else {"schema": "llmgw.doctor/1"}
        value |= {
            "exit_code": code,
            "error": error.text if error is not None else None,
            "controllers": [as_json_explained.asked(str(one.address), one.word, one.error) for one in asked],
            "controllers_disagree": between,
        }
        click.echo(json.dumps(value, ensure_ascii=False, indent=2))
        sys.exit(code)
    page = Page(ascii_only=session.ascii_only)
    view.render(page, asked, answer, error)
    page.print()
    sys.exit(code)


async def _ask(
    addresses: tuple[HostPort, ...],
) -> tuple[list[Asked], pb.DoctorResponse | None, LlmgwError | None]:
    asked = list(await asyncio.gather(*(_leader(address) for address in addresses)))
    known = {one.address for one in asked}
    # Whoever is named as the leader is asked too, or two that each name another would not be seen.
    named = {
        address
        for one in asked
        if one.word is not None and one.word.leader_address
        if (address := _parsed(one.word.leader_address)) is not None and address not in known
    }
    asked += await asyncio.gather(*(_leader(address) for address in sorted(named, key=str)))
    try:
        answer = await call_leader(addresses, lambda stub: stub.Doctor(pb.DoctorRequest(), timeout=20))
    except (NoController, LlmgwError) as e:
        return asked, None, e
    return asked, answer, None


async def _leader(address: HostPort) -> Asked:
    try:
        word = await call_one(
            address, lambda stub: stub.GetLeader(pb.GetLeaderRequest(), timeout=LEADER_TIMEOUT_S)
        )
    except LlmgwError as e:
        return Asked(address, None, e.text)
    return Asked(address, word, None)


def _parsed(text: str) -> HostPort | None:
    try:
        return parse_host_port(text, what="leader address")
    except InvalidRequest:
        return None
