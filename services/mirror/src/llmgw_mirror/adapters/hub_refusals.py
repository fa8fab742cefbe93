"""What a Hub client is told when it does not get what it asked for.

Clients choose their exception by X-Error-Code alone on plain http, so there is always one. What they
show is X-Error-Message and the body's `error`; both name the next step.
"""

import math
import shlex
from collections.abc import Iterable

from aiohttp import web

from llmgw_kit.errors import Denied, InvalidRequest, LlmgwError, NotFound, Unavailable
from llmgw_mirror.core.hub import Offer
from llmgw_mirror.core.hub_requests import REPOSITORY_ID

#: Without anybody's estimate. Longest: a client that was told more would sleep through better news.
RETRY_USUAL_S, RETRY_MOST_S = 10, 3600
#: Of X-Error-Message: some clients end a connection whose head is larger than a few kilobytes.
MESSAGE_MOST = 600


#: By what the registry's own refusals are called here.
CODES = {
    "gated": "GatedRepo", "repository_not_found": "RepoNotFound", "not_in_registry": "RepoNotFound",
    "revision_not_found": "RevisionNotFound", "file_not_found": "EntryNotFound",
    "unknown_path": "EntryNotFound",
}  # fmt: skip


class Refusal(LlmgwError):
    """An answer that is none. `commit` goes out as X-Repo-Commit, which together with EntryNotFound makes
    a client remember for ever that there is no such file."""

    def __init__(
        self, status: int, code: str, text: str, *, next_steps: Iterable[str] = (), commit: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(text, code=code, next_steps=next_steps)
        self.status = status
        self.commit = commit
        self.retry_after_s = retry_after_s


def not_found(code: str, text: str, *next_steps: str, commit: str | None = None) -> Refusal:
    return Refusal(404, code, text, next_steps=next_steps, commit=commit)


def on_its_way(text: str, *, wait_s: float | None, commit: str | None) -> Refusal:
    """`wait_s`: until it is here; None: nobody knows."""
    after = RETRY_USUAL_S if wait_s is None else min(RETRY_MOST_S, max(1, math.ceil(wait_s)))
    return Refusal(503, "OnItsWay", text, commit=commit, retry_after_s=after)


def choosing(repository: str, *more: str) -> str:
    """The next step after "not on this mirror": what an operator types. `more`: flags and their values."""
    if not REPOSITORY_ID.fullmatch(repository):
        return "operators choose what is mirrored: ask for it"
    return (
        f"operators choose what is mirrored: {shlex.join(['llmgwctl', 'mirror', 'fetch', repository, *more])}"
    )


def retrying(offer: Offer) -> str:
    """The next step after a failure, or a stop."""
    words = ["llmgwctl", "mirror", "fetch", "--retry", f"{offer.model}@{offer.version}"]
    return f"an operator has to fetch it again: {shlex.join(words)}"


def refusal_of(error: LlmgwError) -> Refusal:
    """For what the rest of the mirror raises."""
    code = CODES.get(error.code)
    match error:
        case Refusal():
            return error
        case InvalidRequest():
            # It is the mirror that has not been granted it: whose token the client shows makes no difference.
            status = 403 if code == "GatedRepo" else 400
            return Refusal(status, code or "BadRequest", error.text, next_steps=error.next_steps)
        case Denied():
            return Refusal(403, code or "Denied", error.text, next_steps=error.next_steps)
        case NotFound():
            return Refusal(404, code or "RepoNotFound", error.text, next_steps=error.next_steps)
        case Unavailable():
            after = RETRY_USUAL_S if error.retry_after_s is None else max(1, math.ceil(error.retry_after_s))
            return Refusal(503, "Unavailable", error.text, next_steps=error.next_steps, retry_after_s=after)
        case _:
            return Refusal(409, "Conflict", error.text, next_steps=error.next_steps)


def refused(refusal: Refusal) -> web.Response:
    """The answer. Its message is plain ASCII without control characters: it goes into a header, and holds
    names that a stranger chose."""
    text = " — ".join((refusal.text, *refusal.next_steps))
    headers = {"X-Error-Code": refusal.code, "X-Error-Message": _header_text(text)}
    if refusal.commit is not None:
        headers["X-Repo-Commit"] = refusal.commit
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(refusal.retry_after_s))
    return web.json_response({"error": text}, status=refusal.status, headers=headers)


def _header_text(text: str) -> str:
    plain = text.replace("—", "-").encode("ascii", "backslashreplace").decode()
    return "".join(c if c.isprintable() else " " for c in plain)[:MESSAGE_MOST]
