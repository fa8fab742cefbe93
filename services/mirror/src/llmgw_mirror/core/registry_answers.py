"""What the registry's refusals mean: which of them is about the name, the token, the grant, or itself.

It always answers 401 or 404 where something is not for us; the X-Error-Code tells what (the Hub's own)."""

import json
from dataclasses import dataclass

from llmgw_kit.errors import Denied, InvalidRequest, LlmgwError, NotFound, Unavailable
from llmgw_kit.text import in_one_line, shortened

#: Of the registry's own words.
SAID_MAX_CHARS = 160


@dataclass(frozen=True)
class Said:
    """An answer that is neither 200, a redirect, nor "not now"."""

    status: int
    code: str | None
    message: str | None
    body: bytes = b""

    @property
    def words(self) -> str:
        """The registry's own, in one line; empty when it said nothing for people."""
        text = self.message
        if text is None:
            try:
                value = json.loads(self.body)
                text = value.get("error") if isinstance(value, dict) else None
            except (ValueError, RecursionError):
                text = None
        return shortened(in_one_line(text.strip()), most=SAID_MAX_CHARS) if isinstance(text, str) else ""


def refusal(said: Said, *, what: str, base_url: str, has_token: bool) -> LlmgwError:
    """The error to raise. `what` was asked about: a repository, a file of one, or the search."""
    code = (said.code or "").lower()
    words = f" ({said.words})" if said.words else ""
    if code == "gatedrepo":
        return _gated(what, said, has_token=has_token)
    if said.status == 401 and not code and (has_token or "invalid credentials" in said.words.lower()):
        return Denied(
            f"the registry at {base_url} refuses this mirror's token{words}", code="bad_token",
            next_steps=["set registry_token to a token that is valid there"],
        )  # fmt: skip
    if "disabled" in said.words.lower() or said.status in (410, 451):
        return Denied(f"{what} was taken down in the registry{words}", code="taken_down",
                      next_steps=["look for another repository"])  # fmt: skip
    if code == "revisionnotfound":
        return NotFound(f"{what} has no such revision{words}", code="revision_not_found",
                        next_steps=["name a branch, a tag or a commit that the registry has"])  # fmt: skip
    if code == "entrynotfound":
        return NotFound(f"{what} is not in the registry{words}", code="file_not_found",
                        next_steps=["list the files again: they may be of another commit"])  # fmt: skip
    if code == "reponotfound" or said.status in (401, 404):
        return _unknown(what, base_url, words, told=bool(code), has_token=has_token)
    if said.status == 403:
        return Denied(f"the registry refuses {what}{words}", code="registry_refuses",
                      next_steps=["see in the registry what its token may do"])  # fmt: skip
    if said.status in (400, 413, 414, 422):
        return InvalidRequest(
            f"the registry does not take this request{words}",
            code="registry_refuses",
            next_steps=["correct what its words are about; a name or a revision, as a rule"],
        )
    return Unavailable(
        f"the registry at {base_url} answered {said.status} when asked for {what}{words}",
        code="registry_odd",
        next_steps=["see whether registry_url is that of a registry"],
    )  # fmt: skip


def _gated(what: str, said: Said, *, has_token: bool) -> Denied:
    if has_token and said.status != 401:
        return Denied(f"{what} is gated, and the mirror's token has no grant for it", code="gated",
                      next_steps=["ask for access in the registry, as the owner of the token"])  # fmt: skip
    return Denied(f"{what} is gated: the registry gives it to tokens with a grant only", code="gated",
                  next_steps=["set registry_token to a token that was granted access"])  # fmt: skip


def _unknown(what: str, base_url: str, words: str, *, told: bool, has_token: bool) -> NotFound:
    if not told:
        return NotFound(
            f"the registry at {base_url} does not know {what}{words}", code="not_in_registry",
            next_steps=["see whether the name is right, and registry_url that of a registry"],
        )  # fmt: skip
    private = (
        "the mirror's token may not see it" if has_token else "it may be private: this mirror has no token"
    )
    return NotFound(
        f"the registry at {base_url} has no {what}", code="repository_not_found",
        next_steps=["look for it with a search", f"or {private}"],
    )  # fmt: skip
