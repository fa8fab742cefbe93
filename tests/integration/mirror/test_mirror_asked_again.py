"""What is here, or on its way, may be asked for again while the registry is away, or none is configured."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmgw_kit.errors import NotConfigured, Unavailable
from llmgw_mirror.core.versions import WeightsState
from llmgw_mirror.fetching_repository import Order

from .finding_world import Looking, looking_in
from .hub_registry import HubRegistry, hub_registry
from .scripted import gate, hang_up
from .world import content_of

FILES = {
    "model.safetensors": content_of(40_000), "config.json": b"{}", "m.py": b"code",
    "m-Q8_0.gguf": content_of(20_000, seed=2), "m-Q4_K_M-00001-of-00002.gguf": content_of(9_000, seed=3),
    "m-Q4_K_M-00002-of-00002.gguf": content_of(9_000, seed=4),
}  # fmt: skip


@pytest.fixture
async def hub() -> AsyncIterator[HubRegistry]:
    async with hub_registry() as made:
        made.add("org/m", FILES)
        yield made


@pytest.fixture
async def at(hub: HubRegistry, tmp_path: Path) -> AsyncIterator[Looking]:
    async with looking_in(hub, tmp_path) as made:
        yield made


async def fetched(at: Looking, order: Order) -> str:
    view = (await at.fetching.fetch(order)).version
    assert (await at.here.settled(view.model, view.version)).state is WeightsState.PRESENT
    return view.version


def goes_away(hub: HubRegistry) -> None:
    hub.acts.extend([hang_up] * 50)


def commit_of(hub: HubRegistry) -> str:
    return hub.repos["org/m"].branches["main"]


@pytest.mark.parametrize(
    "order",
    [
        Order("org/m"),
        Order("org/m", groups=("gguf-q8_0",)),
        Order("org/m", groups=("GGUF-Q4_K_M",)),
        Order("org/m", paths=("m-Q8_0.gguf",)),
        Order("org/m", paths=("m-Q4_K_M-00002-of-00002.gguf",)),
        Order("org/m", accepted=frozenset({"remote_code"})),
    ],
)
async def test_a_commit_that_is_here_is_answered_without_the_registry(
    at: Looking, hub: HubRegistry, order: Order
) -> None:
    orders = {Order("org/m"), Order("org/m", groups=("gguf-q8_0",)), order}
    for other in orders - {order}:
        await fetched(at, other)
    name = await fetched(at, order)
    goes_away(hub)
    again = Order(
        "org/m",
        commit_of(hub),
        groups=order.groups,
        paths=order.paths,
        accepted=order.accepted,
        asked_by="ann",
    )
    for ask in (at.fetching.preview, at.fetching.fetch):
        told = await ask(again)
        assert (told.version.version, told.bytes_to_fetch) == (name, 0)
        assert told.version.state is WeightsState.PRESENT
        (warning,) = told.warnings
        assert (warning.code, warning.blocks) == ("registry_not_asked", False)


async def test_a_version_that_is_named_is_answered_without_the_registry(
    at: Looking, hub: HubRegistry
) -> None:
    await fetched(at, Order("org/m", model="mine", version="v1", groups=("gguf-q8_0",)))
    goes_away(hub)
    for order in (
        Order("org/m", model="mine", version="v1"),
        Order("org/m", "main", model="mine", version="v1"),
        Order("org/m", commit_of(hub).upper(), model="mine", version="v1", groups=("gguf-q8_0",)),
    ):
        assert (await at.fetching.fetch(order)).version.version == "v1"


@pytest.mark.parametrize(
    "order",
    [
        Order("org/m"),
        Order("org/m", "main"),
        Order("org/m", "c" * 40),
        Order("org/m", "dev", version="v1"),
        Order("org/m", "c" * 40, version="v1"),
        Order("org/m", version="v2"),
        Order("org/other", version="v1"),
        Order("org/m", version="v1", model="org/other"),
        Order("org/m", version="v1", groups=("gguf-q8_0",)),
        Order("org/m", version="v1", paths=("m.py",)),
    ],
)
async def test_what_only_the_registry_knows_is_refused_with_what_can_be_named(
    at: Looking, hub: HubRegistry, order: Order
) -> None:
    await fetched(at, Order("org/m", version="v1"))
    goes_away(hub)
    for ask in (at.fetching.preview, at.fetching.fetch):
        with pytest.raises(Unavailable) as told:
            await ask(order)
        assert told.value.code == "registry_unavailable"
        assert "name what is here already: its commit" in told.value.next_steps[-1]
    assert len(await at.here.mirror.versions()) == 1


async def test_what_is_on_its_way_is_told_how_far_it_is(at: Looking, hub: HubRegistry) -> None:
    opened = asyncio.Event()
    hub.on_content("model.safetensors", gate(opened))
    first = await at.fetching.fetch(Order("org/m"))
    hub.on("/api/models/org/m/revision/" + commit_of(hub), hang_up, hang_up)
    again = await at.fetching.fetch(Order("org/m", commit_of(hub)))
    assert again.version.version == first.version.version
    assert again.version.state is WeightsState.FETCHING
    assert again.bytes_to_fetch
    opened.set()
    assert (await at.here.settled("org/m", first.version.version)).state is WeightsState.PRESENT


async def test_a_mirror_without_a_registry_tells_what_it_has(hub: HubRegistry, tmp_path: Path) -> None:
    async with looking_in(hub, tmp_path) as at:
        name = await fetched(at, Order("org/m"))
    async with looking_in(None, tmp_path) as alone:
        assert (await alone.fetching.fetch(Order("org/m", commit_of(hub)))).version.version == name
        with pytest.raises(NotConfigured) as told:
            await alone.fetching.fetch(Order("org/m"))
        assert told.value.code == "no_registry"
