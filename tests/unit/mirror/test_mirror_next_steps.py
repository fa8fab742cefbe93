"""Every refusal of the mirror says what to do next: read from its source, so that none is forgotten."""

import ast
from pathlib import Path

import pytest

import llmgw_mirror
from llmgw_kit.errors import InvalidRequest, LlmgwError
from llmgw_mirror.adapters.hub_refusals import Refusal
from llmgw_mirror.adapters.room import NoRoom
from llmgw_mirror.core.names import check_name, check_path, check_together
from llmgw_mirror.core.origins import BadRedirect, check_url, next_hop
from llmgw_mirror.core.refusals import unknown_version
from llmgw_mirror.core.versions import Source, wish
from llmgw_mirror.flight import FetchFailed
from llmgw_mirror.ports import Interrupted, Refused

SOURCE = Path(llmgw_mirror.__file__).parent


def kinds() -> set[str]:
    """The names of all errors that callers are told."""
    assert {BadRedirect, FetchFailed, NoRoom, Refused} <= set(_below(LlmgwError))
    # The first is asked again by itself: what a caller is told in the end is a FetchFailed. The second is an
    # answer to the Hub's clients, which wait by themselves, and whose words are tested there.
    return {one.__name__ for one in _below(LlmgwError)} - {Interrupted.__name__, Refusal.__name__}


def _below(one: type[LlmgwError]) -> list[type[LlmgwError]]:
    return [one, *(kind for child in one.__subclasses__() for kind in _below(child))]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_refusal_has_a_next_step(path: Path) -> None:
    errors = kinds()
    silent = [
        f"line {call.lineno}: {ast.unparse(call)[:100]}"
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in errors
        if not any(word.arg in ("next_steps", None) for word in call.keywords)
    ]
    assert silent == []


@pytest.mark.parametrize(
    "path", ["", "../x", "/etc/passwd", "a\\b", "con", "x" * 2000, "a//b", "a\u202eb", "a ."]
)
def test_a_hostile_path_is_refused_with_what_is_taken(path: str) -> None:
    with pytest.raises(InvalidRequest) as told:
        check_path(path)
    assert all(told.value.next_steps)
    assert told.value.next_steps
    with pytest.raises(InvalidRequest) as told:
        check_name("model", path)
    assert told.value.next_steps


def test_what_is_wrong_with_a_wish_is_told_with_what_to_give() -> None:
    url = "https://host.test/w"
    for bad in (
        lambda: wish("m", "v", [Source("w", url, sha256="12")], now=0),
        lambda: wish("m", "v", [Source("w", url, size_bytes=-1)], now=0),
        lambda: wish("m", "v", [Source("w", url, git_id="12")], now=0),
        lambda: wish("m", "v", [Source("w", "ftp://host.test/w")], now=0),
        lambda: check_together(["a", "A"]),
        lambda: check_together(["a", "a/b"]),
        lambda: check_url("https://", what="it"),
        lambda: next_hop(url, None, hops=0),
    ):
        with pytest.raises(LlmgwError) as told:
            bad()
        assert told.value.next_steps


def test_an_unknown_version_says_where_to_look() -> None:
    told = unknown_version("org/m", "v9")
    assert (told.code, told.text) == ("unknown_version", "version 'v9' of 'org/m' is not known")
    assert "llmgwctl mirror versions" in told.next_steps[0]
