"""Known prefixes: what counts as the same beginning, who is remembered for it, and that memory is bounded."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.core.choosing.affinity import (
    CUTS,
    MOST_BYTES,
    Match,
    PrefixMap,
    chain_of,
    scope_of,
    session_key,
)
from llmgw_router.core.choosing.picking import LOAD, PLACE, PREFIX, SESSION, Field, pick
from llmgw_router.core.choosing.prompts import names, read
from llmgw_router.core.config import Choosing

from .spots import Spot

RULES = Choosing()
SCOPE = scope_of(None, "m", None)
LONG = "You are a careful assistant. " * 100


def found(prefixes: PrefixMap, text: str, scope: int = SCOPE) -> Match:
    chain = chain_of(text.encode(), scope)
    match = Match(chain, chain[0] & 0xFFFFFFFF, PREFIX)
    prefixes.find(match, RULES)
    return match


def text_of(body: object, *, ensure_ascii: bool = True) -> bytes:
    prompt = read(json.dumps(body, ensure_ascii=ensure_ascii).encode())
    assert prompt is not None
    return prompt.text


@given(st.text(max_size=3000), st.text(max_size=3000), st.text(max_size=3000))
def test_chains_agree_exactly_as_far_as_texts_do(common: str, one: str, two: str) -> None:
    a, b = (common + one).encode(), (common + two).encode()
    same = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    chains = chain_of(a, SCOPE), chain_of(b, SCOPE)
    agree = sum(x == y for x, y in zip(*chains, strict=False))
    assert agree == sum(cut <= same for cut in CUTS)


def test_what_is_longer_than_the_last_cut_costs_no_more() -> None:
    assert len(chain_of(b"x" * (4 * MOST_BYTES), SCOPE)) == len(CUTS)
    assert chain_of(b"x" * (CUTS[0] - 1), SCOPE) == []


def test_a_conversation_goes_on_where_it_began() -> None:
    prefixes = PrefixMap(1000)
    first = found(prefixes, LONG)
    assert first.worth == {}
    prefixes.learn(first, "a")
    again = found(prefixes, LONG + "and then")
    assert set(again.worth) == {"a"}
    assert again.depths == {"a": len(chain_of(LONG.encode(), SCOPE))}
    assert found(prefixes, "Something else entirely. " * 50).worth == {}


def test_a_prefix_known_to_two_is_worth_what_each_knows() -> None:
    prefixes = PrefixMap(1000)
    prefixes.learn(found(prefixes, LONG + "A" * 2000), "a")
    prefixes.learn(found(prefixes, LONG + "B" * 2000), "b")
    match = found(prefixes, LONG + "A" * 2000)
    assert match.worth["a"] > match.worth["b"] > 0
    assert match.depths is not None
    assert match.depths["a"] == len(match.chain)


def test_ho24_pools_models_and_tenants_do_not_share_what_they_know() -> None:
    scopes = [
        scope_of(pools, model, tenant)
        for pools in (None, ("a",), ("b",))
        for model in ("m", "n")
        for tenant in (None, "org/x", "org/y")
    ]
    assert len(set(scopes)) == len(scopes)
    prefixes = PrefixMap(1000)
    one, two = scope_of(("a",), "m", None), scope_of(("b",), "m", None)
    for _ in range(5):
        for scope, name in ((one, "in-a"), (two, "in-b")):
            match = found(prefixes, LONG, scope)
            assert set(match.worth) <= {name}
            prefixes.learn(match, name)
    assert set(found(prefixes, LONG, one).worth) == {"in-a"}


def test_ho23_on_a_miss_the_load_decides_and_beyond_the_bound_too() -> None:
    busy, idle = Spot("busy", 30), Spot("idle", 0)
    prefixes = PrefixMap(1000)
    for seed in range(50):
        miss = found(prefixes, f"{seed} " * 400)
        assert pick(Field([busy, idle]), RULES, now=1.0, chance=0.5, match=miss) == (idle, LOAD)
    prefixes.learn(found(prefixes, LONG), "busy")
    known = found(prefixes, LONG)
    assert pick(Field([busy, idle]), RULES, now=1.0, chance=0.5, match=known) == (idle, LOAD)
    busy.load = 1
    assert pick(Field([busy, idle]), RULES, now=1.0, chance=0.5, match=known) == (busy, PREFIX)


def test_workers_and_routers_put_a_new_prompt_on_the_same_endpoint() -> None:
    code = (
        "from llmgw_router.core.choosing.affinity import chain_of, scope_of;"
        "print(chain_of(b'hello ' * 500, scope_of(('p',), 'm', 't'))[:3])"
    )
    others = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert others == {str(chain_of(b"hello " * 500, scope_of(("p",), "m", "t"))[:3]) + "\n"}
    spots = [Spot(f"e{n}") for n in range(6)]
    places = set()
    for seed in range(60):
        match = found(PrefixMap(10), f"{seed} " * 400)
        picked = {pick(Field(spots), RULES, now=1.0, chance=n / 7, match=match) for n in range(7)}
        ((endpoint, policy),) = picked
        assert policy == PLACE
        assert endpoint is not None
        places.add(endpoint.name)
    assert places == {spot.name for spot in spots}, "different prompts find different places"


def test_a_session_stays_until_its_endpoint_is_too_busy() -> None:
    prefixes = PrefixMap(1000)
    a, b = Spot("a"), Spot("b")
    key = session_key(b"s1", SCOPE)
    match = Match((key,), key & 0xFFFFFFFF, SESSION)
    prefixes.learn(match, "b")
    prefixes.find_session(match)
    b.load = 7
    assert pick(Field([a, b]), RULES, now=1.0, chance=0.0, match=match) == (b, SESSION)
    b.load = 20
    assert pick(Field([a, b]), RULES, now=1.0, chance=0.0, match=match) == (a, LOAD)
    assert session_key(b"s1", SCOPE) not in chain_of(b"s1" * 5000, SCOPE)


@given(
    entries=st.integers(2, 200),
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8), st.sampled_from("abc")), max_size=80),
)
def test_memory_is_bounded_and_depth_is_never_invented(
    entries: int, steps: list[tuple[int, int, str]]
) -> None:
    prefixes = PrefixMap(entries)
    sent: dict[str, set[str]] = {}
    for seed, length, name in steps:
        text = (f"{seed:08d}" * 128)[: 256 * length]
        match = found(prefixes, text)
        for endpoint, depth in (match.depths or {}).items():
            assert any(other.startswith(text[: CUTS[depth - 1]]) for other in sent[endpoint])
        prefixes.learn(match, name)
        sent.setdefault(name, set()).add(text)
        assert len(prefixes) <= entries + 2 * len(CUTS)


def test_what_is_used_is_kept_and_what_is_not_is_forgotten() -> None:
    prefixes = PrefixMap(100)
    for n in range(200):
        prefixes.learn(found(prefixes, LONG), "a")
        prefixes.learn(found(prefixes, f"{n:08d}" * 200), "b")
    assert set(found(prefixes, LONG).worth) == {"a"}
    assert found(prefixes, "00000000" * 200).worth == {}


# --- what the text of a request is

CHAT = {"model": "m", "messages": [{"role": "system", "content": LONG}, {"role": "user", "content": "héllo"}]}


def test_the_order_of_keys_escapes_and_temperature_do_not_split_a_prefix() -> None:
    plain = text_of(CHAT)
    turned = {"temperature": 0.3, "messages": CHAT["messages"], "stream": True, "model": "m"}
    assert text_of(turned) == plain
    assert text_of(CHAT, ensure_ascii=False) == plain
    parts = [{"role": "system", "content": [{"text": LONG, "type": "text"}]}, CHAT["messages"][1]]
    assert text_of({**CHAT, "messages": parts}) == plain
    assert text_of({**CHAT, "tools": [{"type": "function"}]}) != plain


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": LONG},
        {"prompt": [LONG, "another"]},
        {"input": LONG},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": LONG}]}]},
        {"instructions": LONG, "input": "x"},
        {"system": LONG, "messages": [{"role": "user", "content": "x"}]},
        {"system": [{"type": "text", "text": LONG}], "messages": [{"role": "user", "content": "x"}]},
    ],
)
def test_every_dialect_says_its_prompt(body: object) -> None:
    assert LONG.encode() in text_of(body)


def test_token_ids_are_a_text_like_any_other() -> None:
    one, two = text_of({"prompt": list(range(500))}), text_of({"prompt": [*range(400), *range(9)]})
    assert one != two
    assert one[:800] == two[:800]
    assert text_of({"prompt": [list(range(500))]}) == one


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--boundary\r\n",
        b"[1]",
        b'{"messages": "x"}',
        b'{"prompt": {"a": 1}}',
        b'{"messages":[{"role":"\\ud800"}]}',
    ],
)
def test_ho21_what_is_no_prompt_says_nothing(body: bytes) -> None:
    assert read(body) is None


def test_pictures_and_calls_are_part_of_the_prompt() -> None:
    def with_picture(url: str) -> bytes:
        part = {"type": "image_url", "image_url": {"url": url}}
        return text_of({"messages": [{"role": "user", "content": [part]}]})

    assert with_picture("data:a") != with_picture("data:b")
    call = {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]}
    assert b'"id"' in text_of(call)


def test_sessions_of_the_body_are_read_with_and_without_the_prompt() -> None:
    body = json.dumps({**CHAT, "user": "u", "prompt_cache_key": "k"}).encode()
    for prompt in (read(body), names(body)):
        assert prompt is not None
        assert (prompt.user, prompt.prompt_cache_key) == ("u", "k")
    assert names(b"no") is None


def test_a_very_long_conversation_is_read_only_as_far_as_it_counts() -> None:
    messages = [{"role": "user", "content": "x" * 10_000} for _ in range(200)]
    assert 0.9 * MOST_BYTES <= len(text_of({"messages": messages})) < 2 * MOST_BYTES


def test_who_knows_a_prompt_is_not_told_again() -> None:
    """Under load a prompt goes to all that know it in turn: a turn must not write its keys anew."""
    prefixes = PrefixMap(1000)
    prefixes.learn(found(prefixes, LONG), "a")
    prefixes.learn(found(prefixes, LONG), "b")
    match = found(prefixes, LONG)
    assert set(match.settled) == {"a", "b"}
    prefixes.learn(match, "a")
    assert found(prefixes, LONG).fresh == match.fresh
    # Somebody new is told, and then is one of them.
    prefixes.learn(match, "c")
    assert set(found(prefixes, LONG).settled) == {"a", "b", "c"}
    # Of a longer prompt that begins alike there is something to learn for everybody.
    assert found(prefixes, LONG * 3).settled == ()
