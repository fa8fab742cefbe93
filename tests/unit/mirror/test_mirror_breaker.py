"""When the registry is asked, its pages, and what its refusals mean."""

import pytest

from llmgw_kit.errors import Denied, InvalidRequest, LlmgwError, NotFound, Unavailable
from llmgw_mirror.core import breaker
from llmgw_mirror.core.breaker import Breaker
from llmgw_mirror.core.pages import BadPage, next_page
from llmgw_mirror.core.registry_answers import Said, refusal

# The breaker: m21.


def test_m21_a_failure_makes_it_rest_and_one_alone_tries_again() -> None:
    state = breaker.failed(Breaker(), "silence", now=100.0, wall=5.0)
    assert breaker.may_ask(state, 104.9)[1] is False
    state, ask = breaker.may_ask(state, 105.0)
    assert ask
    assert breaker.may_ask(state, 105.0)[1] is False, "the others wait for the one who tries"
    assert breaker.may_ask(breaker.answered(state), 105.0)[1]


def test_m21_since_when_stays_and_rests_grow() -> None:
    state, waits = Breaker(), []
    for n in range(8):
        state = breaker.failed(state, f"silence {n}", now=0.0, wall=50.0 + n)
        waits.append(breaker.tried_again_in_s(state, 0.0))
    assert state.trouble is not None
    assert (state.trouble.since, state.trouble.what) == (50.0, "silence 7")
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0, 60.0]


@pytest.mark.parametrize(("asked", "rests"), [(30.0, 30.0), (0.0, 1.0), (1e9, 600.0), (None, 5.0)])
def test_h12_a_registry_that_asks_for_rest_gets_it_within_bounds(asked: float | None, rests: float) -> None:
    state = breaker.failed(Breaker(), "429", now=0.0, wall=0.0, rest_s=asked)
    assert breaker.tried_again_in_s(state, 0.0) == rests


def test_who_went_away_while_trying_leaves_it_to_the_next() -> None:
    state, _ = breaker.may_ask(breaker.failed(Breaker(), "x", now=0.0, wall=0.0), 5.0)
    assert breaker.may_ask(breaker.given_up(state), 5.0)[1]


def test_an_odd_answer_is_trouble_without_rest() -> None:
    state = breaker.odd(Breaker(), "html", wall=9.0)
    assert breaker.may_ask(state, 0.0)[1]
    assert breaker.tried_again_in_s(state, 0.0) is None
    assert state.trouble is not None


# Pages: h15.

HERE = "https://r.test/hub/api/models?limit=5"


def page(link: str | None, *, visited: tuple[str, ...] = (HERE,), most: int = 10) -> str | None:
    return next_page(link, here=HERE, visited=visited, most=most)


@pytest.mark.parametrize(
    ("link", "target"),
    [
        (None, None),
        ("", None),
        ("<https://r.test/x>; rel=prev", None),
        ("nonsense", None),
        ("<https://r.test/x?c=1>; rel=next", "https://r.test/x?c=1"),
        ('</x?c=1>; title="a"; rel="prev next"', "https://r.test/x?c=1"),
        ('<https://r.test/a>; rel="prev", <https://r.test/b,c>; rel="next"', "https://r.test/b,c"),
        ("<https://r.test:443/x>; rel=next", "https://r.test:443/x"),
    ],
)
def test_the_next_page(link: str | None, target: str | None) -> None:
    assert page(link) == target


@pytest.mark.parametrize(
    "link",
    [
        f"<{HERE}>; rel=next", "<https://evil.test/x>; rel=next", "<http://r.test/x>; rel=next",
        "<https://r.test:444/x>; rel=next", "<file:///etc/passwd>; rel=next", "<javascript:x>; rel=next",
        "<https://u:p@r.test/x>; rel=next", "<?limit=5>; rel=next", "<https://r.test:x/>; rel=next",
    ],
)  # fmt: skip
def test_h15_pages_that_are_not_asked_for(link: str) -> None:
    with pytest.raises(BadPage):
        page(link)


def test_h15_pages_are_capped() -> None:
    visited = tuple(f"https://r.test/{n}" for n in range(9))
    assert page("<https://r.test/x>; rel=next", visited=visited)
    with pytest.raises(BadPage):
        page("<https://r.test/x>; rel=next", visited=(*visited, HERE))


# Refusals.


@pytest.mark.parametrize(
    ("said", "has_token", "error", "code"),
    [
        (Said(401, "GatedRepo", None), False, Denied, "gated"),
        (Said(403, "GatedRepo", None), True, Denied, "gated"),
        (Said(401, "RepoNotFound", None), False, NotFound, "repository_not_found"),
        (Said(404, "RepoNotFound", None), True, NotFound, "repository_not_found"),
        (Said(404, "RevisionNotFound", "Invalid rev id: x"), False, NotFound, "revision_not_found"),
        (Said(404, "EntryNotFound", None), False, NotFound, "file_not_found"),
        (Said(401, None, "Invalid credentials in Authorization header"), True, Denied, "bad_token"),
        (Said(401, None, None), True, Denied, "bad_token"),
        (Said(401, None, None), False, NotFound, "not_in_registry"),
        (Said(404, None, None), False, NotFound, "not_in_registry"),
        (Said(403, None, "Access to this resource is disabled."), False, Denied, "taken_down"),
        (Said(451, None, None), False, Denied, "taken_down"),
        (Said(403, None, None), True, Denied, "registry_refuses"),
        (Said(400, None, None, b'{"error": "bad sort"}'), False, InvalidRequest, "registry_refuses"),
        (Said(418, None, None), False, Unavailable, "registry_odd"),
    ],
)
def test_h22_what_a_refusal_means(said: Said, has_token: bool, error: type[LlmgwError], code: str) -> None:
    told = refusal(said, what="org/m", base_url="https://r.test", has_token=has_token)
    assert (type(told), told.code) == (error, code)


@pytest.mark.parametrize(
    "said",
    [
        Said(400, None, "a\nb\x1b[2J\ud800"),
        Said(400, None, None, b'{"error": "a\\u0000' + b"x" * 9999 + b'"}'),
    ],
)
def test_the_registrys_words_are_shown_in_one_short_line(said: Said) -> None:
    text = refusal(said, what="org/m", base_url="https://r.test", has_token=False).text
    assert text.isprintable()
    assert len(text) < 300


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 100_000, b'{"error": 4}', b"[]", b"\xff"])
def test_a_refusal_without_words(body: bytes) -> None:
    assert Said(400, None, None, body).words == ""
