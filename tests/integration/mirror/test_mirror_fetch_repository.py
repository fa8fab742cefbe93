"""Files chosen from a repository of the registry, fetched at the commit that was looked at."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from llmgw_kit.errors import Conflict, InvalidRequest, LlmgwError, NotFound
from llmgw_mirror.adapters.listings import NAME as LISTING
from llmgw_mirror.adapters.listings import listing
from llmgw_mirror.adapters.store import version_id
from llmgw_mirror.core.history import Kind
from llmgw_mirror.core.versions import Proof, VersionView, WeightsState, Wish
from llmgw_mirror.fetching_repository import Order

from .finding_world import Looking, looking_in
from .hub_registry import HubRegistry, hub_registry
from .scripted import cut, gate, redirect, status
from .world import content_of

PARTS = {f"model-{n:05}-of-00002.safetensors": content_of(300_000, seed=n) for n in (1, 2)}
INDEX = json.dumps({"weight_map": {"a": min(PARTS), "b": max(PARTS)}}).encode()
ALONG = {
    "model.safetensors.index.json": INDEX, "config.json": b'{"auto_map": {"M": "m.M"}}',
    "tokenizer.json": b"{}" * 500,
}  # fmt: skip
GGUF = {f"m-Q4_K_M-{n:05}-of-00003.gguf": content_of(9_000, seed=10 + n) for n in (1, 2, 3)} | {
    "m-Q8_0.gguf": content_of(20_000, seed=20)
}
FILES = (
    PARTS | ALONG | GGUF | {"pytorch_model.bin": content_of(5_000, seed=30), "m.py": b"code", "a.png": b"png"}
)


@pytest.fixture
async def hub() -> AsyncIterator[HubRegistry]:
    async with hub_registry(prefix="/hub") as made:
        made.add("org/m", FILES)
        yield made


@pytest.fixture
async def at(hub: HubRegistry, tmp_path: Path) -> AsyncIterator[Looking]:
    async with looking_in(hub, tmp_path) as made:
        yield made


async def fetched(at: Looking, order: Order) -> VersionView:
    """Ask and wait."""
    view = (await at.fetching.fetch(order)).version
    return await at.here.settled(view.model, view.version)


def bytes_of(at: Looking, view: VersionView) -> dict[str, bytes]:
    assert view.state is WeightsState.PRESENT, [file.error for file in view.files]
    found = {}
    for file in view.files:
        assert file.sha256 is not None
        found[file.source.path] = at.here.store.blob(file.sha256).read_bytes()
    return found


async def test_the_usual_choice_comes_with_its_companions_byte_for_byte(
    at: Looking, hub: HubRegistry
) -> None:
    commit = hub.repos["org/m"].branches["main"]
    view = await fetched(at, Order("org/m"))
    assert bytes_of(at, view) == PARTS | ALONG
    assert (view.model, view.version) == ("org/m", commit[:12])
    assert view.repository is not None
    assert (view.repository.id, view.repository.commit, view.repository.revision) == ("org/m", commit, "main")
    proofs = {file.source.path: (file.proof, file.source.companion) for file in view.files}
    assert proofs == dict.fromkeys(PARTS, (Proof.SHA256, False)) | dict.fromkeys(ALONG, (Proof.GIT, True))


async def test_what_the_repository_has_is_noted_beside_the_version(at: Looking) -> None:
    view = await fetched(at, Order("org/m"))
    assert listing(at.here.store, version_id(view.model, view.version)) == frozenset(FILES)


async def test_no_death_lies_between_a_version_and_what_its_repository_has(
    at: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, seen = at.here.store, []
    real = store.create

    def create(wish: Wish, **beside: Any) -> bool:
        made = real(wish, **beside)
        seen.append(listing(store, version_id(wish.model, wish.version)))
        return made

    monkeypatch.setattr(store, "create", create)
    view = await fetched(at, Order("org/m"))
    assert seen == [frozenset(FILES)]
    # Of a version that came without, it is noted when it is asked for again.
    (store.versions / version_id(view.model, view.version) / LISTING).unlink()
    await at.fetching.fetch(Order("org/m"))
    assert listing(store, version_id(view.model, view.version)) == frozenset(FILES)


async def test_the_same_order_again_fetches_nothing(at: Looking, hub: HubRegistry) -> None:
    first = await fetched(at, Order("org/m", asked_by="ann"))
    asked = len(hub.seen("/lfs/"))
    again = await at.fetching.fetch(Order("org/m", asked_by="bob"))
    assert (again.version, again.bytes_to_fetch) == (first, 0)
    assert len(hub.seen("/lfs/")) == asked == 2
    entries = await at.here.built.history.newest(model=None, version=None, since=None, limit=99)
    assert [one.asked_by for one in entries if one.kind is Kind.ASKED] == ["ann"]


async def test_h7_a_branch_that_moves_changes_nothing_that_was_asked_for(
    at: Looking, hub: HubRegistry
) -> None:
    repo = hub.repos["org/m"]
    first = repo.branches["main"]
    hub.on_content(min(PARTS), cut(1000))
    asked = await at.fetching.fetch(Order("org/m"))
    second = repo.commit(FILES | {path: b"new" + content for path, content in PARTS.items()})
    view = await at.here.settled("org/m", asked.version.version)
    assert bytes_of(at, view) == PARTS | ALONG
    assert {r.path.split("/resolve/")[1].split("/")[0] for r in hub.seen("^/org/m/resolve/")} == {first}
    newer = await fetched(at, Order("org/m"))
    assert newer.version == second[:12]
    assert bytes_of(at, newer)[min(PARTS)].startswith(b"new")


async def test_h20_naming_one_shard_takes_all_of_its_split(at: Looking) -> None:
    view = await fetched(at, Order("org/m", paths=("m-Q4_K_M-00001-of-00003.gguf",)))
    taken = {path for path in bytes_of(at, view) if path.endswith(".gguf")}
    assert taken == {path for path in GGUF if "Q4_K_M" in path}


async def test_h20_a_gap_is_refused_before_a_byte_is_fetched(at: Looking, hub: HubRegistry) -> None:
    hub.repos["org/m"].commit({path: c for path, c in FILES.items() if "00002-of-00003.gguf" not in path})
    for order in (
        Order("org/m", groups=("gguf-q4_k_m",)),
        Order("org/m", paths=("m-Q4_K_M-00001-of-00003.gguf",)),
    ):
        with pytest.raises(InvalidRequest) as told:
            await at.fetching.fetch(order)
        assert told.value.code == "split_gap"
        assert "accept split_gap" in told.value.next_steps[-1]
    assert hub.seen("/lfs/") == []
    assert await at.here.mirror.versions() == []
    view = await fetched(at, Order("org/m", groups=("gguf-q4_k_m",), accepted=frozenset({"split_gap"})))
    assert view.state is WeightsState.PRESENT


async def test_groups_and_single_files_together(at: Looking, hub: HubRegistry) -> None:
    order = Order("org/m", groups=("gguf-q8_0", "GGUF-Q4_K_M"), paths=("pytorch_model.bin", "a.png"))
    view = await fetched(at, order)
    assert bytes_of(at, view) == GGUF | ALONG | {p: FILES[p] for p in ("pytorch_model.bin", "a.png")}
    commit = hub.repos["org/m"].branches["main"]
    assert view.version.startswith(f"{commit[:12]}-gguf-q4_k_m+gguf-q8_0+")
    assert (await at.fetching.fetch(order)).version.version == view.version


async def test_another_choice_of_a_commit_is_another_version(at: Looking, hub: HubRegistry) -> None:
    commit = hub.repos["org/m"].branches["main"][:12]
    await fetched(at, Order("org/m"))
    await fetched(at, Order("org/m", groups=("gguf-q8_0",)))
    # The usual choice by its name is the usual choice.
    assert (await at.fetching.fetch(Order("org/m", groups=("safetensors",)))).bytes_to_fetch == 0
    assert [view.version for view in await at.here.mirror.versions()] == [commit, f"{commit}-gguf-q8_0"]
    look = await at.finding.look("org/m", None)
    assert look.version_here == {"safetensors": commit, "gguf-q8_0": f"{commit}-gguf-q8_0"}
    found, _ = await at.finding.search("org/m")
    assert found[0].versions_here == (commit, f"{commit}-gguf-q8_0")


async def test_a_version_of_another_commit_is_not_this_one(at: Looking, hub: HubRegistry) -> None:
    await fetched(at, Order("org/m", groups=("gguf-q8_0",)))
    hub.repos["org/m"].commit(FILES | {"m-Q8_0.gguf": b"newer"})
    assert (await at.finding.look("org/m", None)).version_here == {}


async def test_h22_gated_weights_alone_are_refused_without_a_token_too(at: Looking, hub: HubRegistry) -> None:
    """Nothing beside them that would have been asked for, and refused, while looking."""
    hub.add("org/g", GGUF, gated="auto").granted = {"granted"}
    with pytest.raises(InvalidRequest) as told:
        await at.fetching.fetch(Order("org/g"))
    assert told.value.code == "gated"


async def test_a_version_never_changes_what_it_means(at: Looking, hub: HubRegistry) -> None:
    await fetched(at, Order("org/m", model="mine", version="v1"))
    for dry in (at.fetching.preview, at.fetching.fetch):
        with pytest.raises(Conflict) as told:
            await dry(Order("org/m", groups=("gguf-q8_0",), model="mine", version="v1"))
        assert told.value.code == "version_differs"
        assert "m-Q8_0.gguf is new" in told.value.text
        assert f"{hub.repos['org/m'].branches['main'][:12]}-gguf-q8_0" in told.value.next_steps[0]
    (view,) = await at.here.mirror.versions()
    assert bytes_of(at, view) == PARTS | ALONG


async def test_code_comes_along_only_when_it_is_asked_for(at: Looking, hub: HubRegistry) -> None:
    commit = hub.repos["org/m"].branches["main"][:12]
    order = Order("org/m", accepted=frozenset({"remote_code"}))
    view = await fetched(at, order)
    assert bytes_of(at, view) == PARTS | ALONG | {"m.py": b"code"}
    assert view.version == f"{commit}-code"
    told = await at.fetching.preview(Order("org/m"))
    assert "remote_code" in [one.code for one in told.warnings]
    assert "m.py" not in [file.source.path for file in told.version.files]


async def test_a_dry_run_tells_everything_and_does_nothing(at: Looking, hub: HubRegistry) -> None:
    told = await at.fetching.preview(Order("org/m", groups=("pytorch",)))
    assert told.bytes_to_fetch == 5_000 + sum(len(content) for content in ALONG.values())
    assert {one.code for one in told.warnings} == {"remote_code", "pickle"}
    assert {file.state for file in told.version.files} == {WeightsState.ABSENT}
    assert {file.source.path for file in told.version.files} == {"pytorch_model.bin", *ALONG}
    assert await at.here.mirror.versions() == []
    assert hub.seen("/lfs/") == []
    assert list(at.here.store.versions.iterdir()) == []


async def test_what_is_here_already_does_not_come_again(at: Looking, hub: HubRegistry) -> None:
    await fetched(at, Order("org/m"))
    hub.add("org/copy", FILES | {"extra.safetensors": b"e" * 400})
    told = await at.fetching.preview(Order("org/copy", groups=("safetensors",)))
    assert told.bytes_to_fetch == sum(len(content) for content in ALONG.values())
    asked = len(hub.seen("/lfs/"))
    await fetched(at, Order("org/copy", groups=("safetensors",)))
    assert len(hub.seen("/lfs/")) == asked


async def test_room_that_a_fetch_would_make_by_itself_counts_as_room(
    at: Looking, hub: HubRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H9's other side: what was removed and can be undone is given up for a fetch, so it refuses none."""
    first = await fetched(at, Order("org/m", groups=("gguf-q8_0",)))
    free = 300_000
    monkeypatch.setattr(at.here.store, "disk", lambda: (10**9, free))
    hub.add("org/new", {"model.safetensors": content_of(310_000, seed=77)})
    with pytest.raises(InvalidRequest) as told:
        await at.fetching.fetch(Order("org/new"))
    assert told.value.code == "disk_too_small"
    await at.here.built.keepers.keeping.removing.remove(first.model, first.version)
    assert (await at.fetching.preview(Order("org/new"))).warnings == ()
    look = await at.finding.look("org/new", None)
    assert look.space.free_bytes == free
    # The removed content is here; to count it as room, too, would count it twice.
    small = sum(len(content) for content in ALONG.values())  # of these no sha256 is published
    assert (await at.fetching.preview(Order("org/m", groups=("gguf-q8_0",)))).bytes_to_fetch == small
    assert (await at.finding.look("org/m", None)).space.spare_bytes == small


@pytest.mark.parametrize(
    ("order", "error", "code", "hint"),
    [
        (Order("org/m", groups=("gguf-q4_km",)), NotFound, "unknown_group", "gguf-q4_k_m"),
        (Order("org/m", groups=("",)), NotFound, "unknown_group", "safetensors"),
        (Order("org/m", paths=("pytorch_model.bim",)), NotFound, "unknown_path", "pytorch_model.bin"),
        (Order("org/m", paths=("../x",)), InvalidRequest, "odd_file", ""),
        (Order("org/m", paths=("/etc/passwd",)), NotFound, "unknown_path", ""),
        (Order("org/m", model="../x"), InvalidRequest, "invalid_request", ""),
        (Order("org/m", version="a\0b"), InvalidRequest, "invalid_request", ""),
        (Order("org/none"), NotFound, "repository_not_found", ""),
    ],
)
async def test_bad_orders_are_refused_by_name_and_leave_nothing(
    at: Looking, hub: HubRegistry, order: Order, error: type[LlmgwError], code: str, hint: str
) -> None:
    hub.repos["org/m"].extra_rows = [{"rfilename": "../x", "size": 5}]
    with pytest.raises(error) as told:
        await at.fetching.fetch(order)
    assert told.value.code == code
    assert hint in "".join(told.value.next_steps)
    assert list(at.here.store.versions.iterdir()) == []
    assert hub.seen("/lfs/") == []


async def test_pickles_alone_are_refused_unless_accepted(at: Looking, hub: HubRegistry) -> None:
    hub.add("org/old", {"pytorch_model.bin": b"p" * 900})
    with pytest.raises(InvalidRequest) as told:
        await at.fetching.fetch(Order("org/old"))
    assert told.value.code == "pickle_only"
    view = await fetched(at, Order("org/old", accepted=frozenset({"pickle_only"})))
    assert view.state is WeightsState.PRESENT
    # Let in once, it is not asked about again.
    assert (await at.fetching.fetch(Order("org/old"))).bytes_to_fetch == 0


async def test_a_repository_without_weights_has_nothing_to_choose(at: Looking, hub: HubRegistry) -> None:
    hub.add("org/text", {"README.md": b"# text"})
    with pytest.raises(InvalidRequest) as told:
        await at.fetching.fetch(Order("org/text"))
    assert told.value.code == "nothing_to_choose"
    view = await fetched(at, Order("org/text", paths=("README.md",)))
    assert bytes_of(at, view) == {"README.md": b"# text"}


async def test_h16_h22_gated_without_a_token_is_refused_and_shown_as_nothing_here(
    at: Looking, hub: HubRegistry
) -> None:
    hub.add("org/g", PARTS | {"config.json": b"{}"}, gated="auto").granted = {"granted"}
    with pytest.raises(InvalidRequest) as told:
        await at.fetching.fetch(Order("org/g"))
    assert told.value.code == "gated"
    assert await at.here.mirror.versions() == []
    assert (await at.finding.look("org/g", None)).version_here == {}


async def test_h10_h11_a_gated_repository_with_a_grant_and_a_second_origin_that_refuses_tokens(
    hub: HubRegistry, tmp_path: Path
) -> None:
    hub.add("org/g", PARTS | {"config.json": b"{}"}, gated="auto").granted = {"granted"}
    async with looking_in(hub, tmp_path, registry_token="granted") as at:
        view = await fetched(at, Order("org/g"))
        assert bytes_of(at, view) == PARTS | {"config.json": b"{}"}
    assert {r.token for r in hub.seen("") if not r.on_cdn} == {"granted"}
    assert {r.token for r in hub.seen("") if r.on_cdn} == {None}


async def test_h12_many_small_files_and_one_429(at: Looking, hub: HubRegistry) -> None:
    files = {f"part{n:02}.json": b'{"n": %d}' % n for n in range(40)} | {"model.safetensors": b"w" * 500}
    hub.add("org/many", files)
    for n in range(4):
        hub.on_content(f"part{n:02}.json", status(429, b"", Retry_After=1))
    view = await fetched(at, Order("org/many"))
    assert bytes_of(at, view) == files
    # Nobody stormed: four were on their way when the first was told to wait.
    assert len(hub.seen("resolve-cache/.*json")) <= 40 + 4


async def test_a_redirect_to_nowhere_fails_one_file_and_says_so(at: Looking, hub: HubRegistry) -> None:
    commit = hub.repos["org/m"].branches["main"]
    hub.on(f"/org/m/resolve/{commit}/{min(PARTS)}", redirect("file:///etc/passwd"))
    view = await fetched(at, Order("org/m"))
    assert view.state is WeightsState.FAILED
    assert [f.source.path for f in view.files if f.state is WeightsState.FAILED] == [min(PARTS)]
    assert bytes_of(at, await fetched(at, Order("org/m"))) == PARTS | ALONG


async def test_the_same_order_twice_at_once_is_one_version(at: Looking, hub: HubRegistry) -> None:
    opened = asyncio.Event()
    hub.on_content(min(PARTS), gate(opened))
    one, two = await asyncio.gather(at.fetching.fetch(Order("org/m")), at.fetching.fetch(Order("org/m")))
    assert one.version.version == two.version.version
    opened.set()
    view = await at.here.settled("org/m", one.version.version)
    assert bytes_of(at, view) == PARTS | ALONG
    assert len(hub.seen("/lfs/")) == len(PARTS)
