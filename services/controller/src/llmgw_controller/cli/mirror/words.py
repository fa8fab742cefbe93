"""States, checksums and warnings in the words that tables and JSON use."""

import shlex
from collections.abc import Iterable
from typing import Any

from llmgw.v1 import mirror_pb2 as pb
from llmgw_controller.cli.as_json import Json, opt
from llmgw_controller.cli.page import Page, wrapped
from llmgw_controller.cli.text import iso

#: What proves a file, in a word (the wire's, as JSON has it) and for people.
PROOFS = {
    "sha256": "published sha256",
    "git": "git id",
    "none": "no published checksum",
}


def state(value: "pb.WeightsState.ValueType") -> str:
    """`failed`, `absent`, `fetching`, `verifying`, `present`: worst first."""
    return pb.WeightsState.Name(value).removeprefix("WEIGHTS_STATE_").lower()


def file_word(file: pb.WeightsFile) -> str:
    """As `state`, but that nobody works at a file that was stopped, and one that is absent has its turn."""
    if file.cancelled:
        return "stopped"
    return "waiting" if file.state == pb.WEIGHTS_STATE_ABSENT else state(file.state)


def proof(file: pb.WeightsFile) -> str:
    return PROOFS.get(file.proof, file.proof) if file.HasField("proof") else "-"


def checksum(file: pb.ListedFile) -> str:
    """Of a file in a listing: what will prove it."""
    if file.HasField("sha256"):
        return PROOFS["sha256"]
    return f"{PROOFS['none']}, git id" if file.HasField("git_id") else PROOFS["none"]


def warn(page: Page, warnings: Iterable[pb.Warning], *, accepted: Iterable[str] = ()) -> None:
    """What blocks a fetch first; each with what to do about it, most useful first."""
    taken = set(accepted)
    for one in sorted(warnings, key=lambda one: not one.blocks):
        blocks = one.blocks and one.code not in taken
        lead = ("!! ", "bold red") if blocks else (" * ", "")
        wrapped(page, [lead, (f"{one.code}: ", "")], one.text)
        for step in one.next_steps:
            wrapped(page, [("     ", "dim")], step)
        if blocks:
            page.line((f"     to take it all the same: --accept {one.code}", "dim"))


def odd(page: Page, one: pb.WeightsVersion) -> None:
    """What is odd about a version that is here: nothing is to be accepted any more."""
    for warning in one.warnings:
        wrapped(page, [(" * ", ""), (f"{warning.code}: ", "")], warning.text)
        for step in warning.next_steps:
            wrapped(page, [("     ", "dim")], step)


def offer(page: Page, words: Iterable[str]) -> None:
    """What to type next: in several lines that a shell takes as one, where it is too long for the page."""
    pieces: list[str] = []
    option = False
    for word in words:
        # An option and its value stay together.
        if option and not word.startswith("--"):
            pieces[-1] += f" {shlex.quote(word)}"
        else:
            pieces.append(shlex.quote(word))
        option = word.startswith("--")
    line = "next:"
    for piece in pieces:
        if len(line) + 1 + len(piece) > page.width - 2:
            page.line((f"{line} \\", "dim"))
            line = "     "
        line += f" {piece}"
    page.line((line, "dim"))


def warning_json(one: pb.Warning) -> Json:
    return {"code": one.code, "text": one.text, "next_steps": list(one.next_steps), "blocks": one.blocks}


def repository_json(message: Any) -> Json | None:
    """Of a message with a `repository`."""
    if not message.HasField("repository"):
        return None
    one = message.repository
    return {"id": one.id, "commit": one.commit, "revision": opt(one, "revision")}


def version_json(one: pb.WeightsVersion) -> Json:
    return {
        "model": one.model,
        "version": one.version,
        "state": state(one.state),
        "repository": repository_json(one),
        "created": iso(opt(one, "created_at_unix_s")),
        "verified": iso(opt(one, "verified_at_unix_s")),
        "received_bytes": one.received_bytes,
        "total_bytes": opt(one, "total_bytes"),
        "rate_bytes_per_second": opt(one, "rate_bytes_s"),
        "eta_seconds": opt(one, "eta_s"),
        "readers": list(one.readers),
        "warnings": [warning_json(warning) for warning in one.warnings],
        "files": [
            {
                "path": file.path,
                "state": state(file.state),
                "size_bytes": opt(file, "size_bytes"),
                "received_bytes": file.received_bytes,
                "sha256": opt(file, "sha256"),
                "proof": opt(file, "proof"),
                "source_url": opt(file, "source_url"),
                "rate_bytes_per_second": opt(file, "rate_bytes_s"),
                "eta_seconds": opt(file, "eta_s"),
                "error": opt(file, "error"),
                "companion": file.companion,
                "cancelled": file.cancelled,
            }
            for file in one.files
        ],
    }
