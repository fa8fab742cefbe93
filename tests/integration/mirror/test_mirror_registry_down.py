"""A registry in trouble: told on a line of its own, and one time-out for all who ask (M21)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmgw_kit.errors import Denied, LlmgwError, NotFound, Unavailable
from llmgw_kit.testing.clock import FakeClock
from llmgw_mirror.adapters.registry_http import RegistryState
from llmgw_mirror.fetching_repository import Order

from .finding_world import Looking, looking_in
from .hub_registry import HubRegistry, hub_registry
from .scripted import Act, Exchange, hang_up, redirect, silent, status
from .world import until

#: A connection that breaks before an answer is tried once more by the client: it may have been an old one.
GONE = [hang_up, hang_up]


async def half(x: Exchange) -> None:
    """An answer that breaks off."""
    await x.head(200, Content_Length=50)
    await x.send(b"[")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def hub() -> AsyncIterator[HubRegistry]:
    async with hub_registry() as made:
        made.add("org/m", {"model.safetensors": b"weights" * 99})
        yield made


@pytest.fixture
async def at(hub: HubRegistry, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Looking]:
    """Its time-outs are the clock's."""
    async with looking_in(hub, tmp_path, clock=clock) as made:
        yield made


def state_of(at: Looking) -> RegistryState:
    state = at.finding.state()
    assert state is not None
    return state


async def fails(at: Looking) -> Unavailable:
    with pytest.raises(Unavailable) as told:
        await at.finding.search("m")
    return told.value


async def test_m21_a_silent_registry_costs_one_time_out_not_one_a_click(
    at: Looking, hub: HubRegistry, clock: FakeClock
) -> None:
    hub.acts.append(silent)
    asked = asyncio.create_task(fails(at))
    await until(lambda: bool(hub.requests))
    await clock.advance(9.9)
    assert not asked.done()
    await clock.advance(0.1)
    assert "no answer within 10 s" in (await asked).text
    for _ in range(5):
        again = await fails(at)
        assert (again.code, again.retry_after_s) == ("registry_unavailable", 5.0)
    assert len(hub.requests) == 1
    state = state_of(at)
    assert (state.trouble_since, state.tried_again_at) == (clock.unix_s(), clock.unix_s() + 5.0)
    await clock.advance(5.0)
    assert (await at.finding.search("m"))[0]
    assert (state_of(at).trouble, state_of(at).tried_again_at) == (None, None)


async def test_m21_after_a_rest_one_tries_alone(at: Looking, hub: HubRegistry, clock: FakeClock) -> None:
    hub.acts.extend(GONE)
    await fails(at)
    await clock.advance(5.0)
    arrived, opened = asyncio.Event(), asyncio.Event()

    async def act(x: Exchange) -> None:
        arrived.set()
        await opened.wait()
        await status(200, b"[]")(x)

    hub.acts.append(act)
    trying = asyncio.create_task(at.finding.search("m"))
    await arrived.wait()
    assert (await fails(at)).code == "registry_unavailable"
    opened.set()
    assert await trying == ([], False)
    assert len(hub.requests) == 3


async def test_who_tries_and_goes_away_leaves_it_to_the_next(
    at: Looking, hub: HubRegistry, clock: FakeClock
) -> None:
    hub.acts.extend(GONE)
    await fails(at)
    await clock.advance(5.0)
    arrived = asyncio.Event()

    async def act(x: Exchange) -> None:
        arrived.set()
        await x.upstream.over.wait()

    hub.acts.append(act)
    trying = asyncio.create_task(at.finding.search("m"))
    await arrived.wait()
    trying.cancel()
    await asyncio.wait({trying})
    assert (await at.finding.search("m"))[0]


async def test_many_who_fail_at_once_count_as_one_failure(
    at: Looking, hub: HubRegistry, clock: FakeClock
) -> None:
    hub.acts.extend(GONE * 6)
    await asyncio.gather(*(fails(at) for _ in range(6)))
    assert state_of(at).tried_again_at == clock.unix_s() + 5.0


@pytest.mark.parametrize(
    ("act", "words", "rests"),
    [
        (hang_up, "no answer", True), (status(503), "answers 503", True), (status(502), "answers 502", True),
        (half, "broke off", True), (status(500), "answers 500", False),
        (status(500, Retry_After=9), "answers 500 and asks for 9 s", True),
        (redirect("http://x:y/"), "redirects badly", False), (redirect(""), "without saying where", False),
        (redirect("file:///etc/passwd"), "file", False),
        (status(200, b"[]", Content_Encoding="br"), "'br'", False),
        (status(200, b"[]", Content_Encoding="gzip"), "packed badly", False),
        (status(200, b"[" + b" " * 9_000_000), "more than", False),
    ],
)  # fmt: skip
async def test_trouble_is_told_in_words_and_rests_where_the_next_would_pay_as_much(
    at: Looking, hub: HubRegistry, act: Act, words: str, rests: bool
) -> None:
    hub.acts.extend([act] * (2 if act is hang_up else 1))
    told = await fails(at)
    assert words in told.text
    assert words in (state_of(at).trouble or "")
    assert told.next_steps
    assert (told.code, told.retry_after_s is not None) == (
        ("registry_unavailable", True) if rests else ("registry_odd", False)
    )
    assert (state_of(at).tried_again_at is not None) is rests
    if not rests:
        assert (await at.finding.search("m"))[0]
        assert state_of(at).trouble is None


async def test_redirects_in_a_circle_end(at: Looking, hub: HubRegistry) -> None:
    hub.acts.extend([redirect("/api/models?again")] * 30)
    await fails(at)
    assert len(hub.requests) == 11


async def test_a_port_where_nobody_listens(tmp_path: Path) -> None:
    async with looking_in(None, tmp_path, registry_url="http://127.0.0.1:1", clock=FakeClock()) as at:
        await fails(at)
        assert "no answer" in (state_of(at).trouble or "")


@pytest.mark.parametrize(
    ("headers", "rests"),
    [
        ({"Retry-After": 42}, 42.0),
        ({"RateLimit": '"api";r=0;t=77'}, 77.0),
        ({}, 5.0),
        ({"Retry-After": "soon"}, 5.0),
    ],
)
async def test_h12_429_is_obeyed_by_the_whole_process(
    at: Looking, hub: HubRegistry, clock: FakeClock, headers: dict[str, str | int], rests: float
) -> None:
    hub.acts.append(status(429, b"", **headers))
    await fails(at)
    with pytest.raises(Unavailable):
        await at.finding.look("org/m", None)
    assert len(hub.requests) == 1
    assert state_of(at).tried_again_at == clock.unix_s() + rests


async def test_a_refusal_is_an_answer_and_ends_the_trouble(
    at: Looking, hub: HubRegistry, clock: FakeClock
) -> None:
    hub.acts.extend([status(503), status(404, X_Error_Code="RepoNotFound")])
    await fails(at)
    await clock.advance(5.0)
    with pytest.raises(NotFound):
        await at.finding.look("org/none", None)
    assert state_of(at).trouble is None


async def test_a_bad_token_is_told_until_it_is_good(hub: HubRegistry, tmp_path: Path) -> None:
    hub.tokens = {"other"}
    async with looking_in(hub, tmp_path, registry_token="bad") as at:
        with pytest.raises(Denied):
            await at.finding.search("m")
        assert "token" in (state_of(at).trouble or "")
        hub.tokens = {"bad"}
        await at.finding.search("m")
        assert state_of(at).trouble is None


async def test_m21_what_is_here_is_listed_and_served_without_the_registry(
    at: Looking, hub: HubRegistry
) -> None:
    await at.fetching.fetch(Order("org/m"))
    (version,) = await at.here.mirror.versions()
    await at.here.settled("org/m", version.version)
    hub.acts.extend(GONE)
    with pytest.raises(LlmgwError):
        await at.fetching.fetch(Order("org/m"))
    (version,) = await at.here.mirror.versions()
    assert version.state.value == "present"
    again = await at.here.mirror.fetch("org/m", version.version, [])
    assert again.state.value == "present"


async def test_the_second_origin_in_trouble_is_not_the_registrys(
    at: Looking, hub: HubRegistry, clock: FakeClock
) -> None:
    hub.repos["org/m"].commit(
        {"model.safetensors": b"w" * 99, "config.json": b'{"a": 1}'}, lfs=["config.json", "model.safetensors"]
    )
    hub.on_content("config.json", *GONE, silent)
    await at.finding.look("org/m", None)
    assert state_of(at).trouble is None
    asked = asyncio.create_task(at.finding.look("org/m", None))
    await until(lambda: not hub.content_scripts["config.json"])
    await clock.advance(10.0)
    await asked
    assert state_of(at).trouble is None
