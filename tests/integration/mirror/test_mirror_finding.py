"""Looking in the registry: a scripted one on loopback, with everything that one can say."""

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmgw_kit.errors import Denied, InvalidRequest, LlmgwError, NotConfigured, NotFound, Unavailable
from llmgw_mirror.core.warnings import GpuClass

from .finding_world import Looking, looking_in
from .hub_registry import HubRegistry, hub_registry
from .scripted import Exchange, redirect, status

WEIGHTS = b"weights" * 100
INDEX = json.dumps(
    {"weight_map": {f"t{n}": f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3)}}
).encode()
SHARDED = {f"model-{n:05}-of-00003.safetensors": WEIGHTS + bytes([n]) for n in (1, 2, 3)} | {
    "model.safetensors.index.json": INDEX, "config.json": b'{"architectures": ["M"]}', "README.md": b"# m",
    "modeling_m.py": b"print()", "pytorch_model.bin": WEIGHTS,
}  # fmt: skip


@pytest.fixture
async def hub() -> AsyncIterator[HubRegistry]:
    async with hub_registry(prefix="/hub") as made:
        made.add("org/m", SHARDED)
        yield made


@pytest.fixture
async def at(hub: HubRegistry, tmp_path: Path) -> AsyncIterator[Looking]:
    async with looking_in(hub, tmp_path) as made:
        yield made


def said(body: object, code: int = 200, **headers: str | int):  # type: ignore[no-untyped-def]
    return status(code, body if isinstance(body, bytes) else json.dumps(body).encode(), **headers)


async def test_without_a_registry_every_call_says_so_at_once(tmp_path: Path) -> None:
    async with looking_in(None, tmp_path) as at:
        assert at.finding.state() is None
        for call in (at.finding.search("m"), at.finding.look("org/m", None)):
            with pytest.raises(NotConfigured) as told:
                await call
            assert told.value.code == "no_registry"


# Search.


async def test_search_finds_by_words_with_what_a_row_says(at: Looking, hub: HubRegistry) -> None:
    hub.add("org/other", {}, gated="manual", likes=None)
    found, more = await at.finding.search("other")
    assert [(one.row.id, one.row.gated, one.row.downloads, one.row.likes) for one in found] == [
        ("org/other", "manual", 42, None)
    ]
    assert not more
    assert hub.requests[-1].headers["user-agent"] == "llmgw-mirror"


async def test_m20_odd_rows_stand_among_the_others(at: Looking, hub: HubRegistry) -> None:
    hub.extra_results = [None, {"id": "../x"}, {"id": "org/z", "gated": {"form": 1}}]
    found, _ = await at.finding.search("")
    assert [one.row.odd is None for one in found] == [True, False, False, True]
    assert found[-1].row.gated == "odd"


async def test_pages_are_followed_to_the_limit_and_no_further(at: Looking, hub: HubRegistry) -> None:
    for n in range(30):
        hub.add(f"org/n{n:02}", {})
    hub.search_page_rows = 10
    found, more = await at.finding.search("org/n", limit=25)
    assert (len(found), more) == (25, True)
    assert len(hub.requests) == 3
    found, more = await at.finding.search("org/n", limit=30)
    assert (len({one.row.id for one in found}), more) == (30, False)


@pytest.mark.parametrize("where", ["itself", "elsewhere", "circle"])
async def test_h15_pages_that_never_end_are_left(at: Looking, hub: HubRegistry, where: str) -> None:
    own = f"{hub.base}/api/models?search=org&cursor=0"
    hub.next_link = {"itself": own, "circle": own, "elsewhere": f"http://127.0.0.1:{hub.cdn_port}/x"}[where]
    found, more = await at.finding.search("org", limit=100)
    assert {one.row.id for one in found} == {"org/m"}
    assert more
    assert not [request for request in hub.requests if getattr(request, "on_cdn", False)]
    assert len(hub.requests) <= 3


@pytest.mark.parametrize(
    "asked", [{"limit": 0}, {"limit": 101}, {"sort": "best"}, {"filters": ["x"] * 21}, {"author": "a\nb"}]
)
async def test_bad_searches_are_refused_unasked(
    at: Looking, hub: HubRegistry, asked: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequest):
        await at.finding.search("m", **asked)  # type: ignore[arg-type]
    assert hub.requests == []


# One repository.


async def test_m19_a_listing_has_weight_files_with_real_sizes_and_sums(at: Looking, hub: HubRegistry) -> None:
    look = await at.finding.look("org/m", None)
    commit = hub.repos["org/m"].branches["main"]
    assert (look.repository.commit, look.repository.revision) == (commit, "main")
    assert [group.name for group in look.groups] == ["safetensors", "pytorch"]
    group = look.groups[0]
    assert group.preselected
    files = hub.repos["org/m"].commits[commit]
    for file in group.files:
        assert (file.size_bytes, file.sha256) == (len(files[file.path].content), files[file.path].sha256)
    assert {file.path for file in look.companions} == {
        "model.safetensors.index.json", "config.json", "README.md",
    }  # fmt: skip
    assert look.warnings == look.about["safetensors"] == ()
    assert [one.code for one in look.about["pytorch"]] == ["pickle"]


async def test_a_branch_is_looked_up_once_and_a_commit_stays(at: Looking, hub: HubRegistry) -> None:
    first = hub.repos["org/m"].branches["main"]
    second = hub.repos["org/m"].commit({"model.safetensors": b"new" * 99})
    assert (await at.finding.look("org/m", "main")).repository.commit == second
    old = await at.finding.look("org/m", first)
    assert (old.repository.commit, old.repository.revision) == (first, None)
    assert "pytorch_model.bin" in {file.path for group in old.groups for file in group.files}
    assert not hub.seen("resolve/main")


async def test_a_quoted_revision(at: Looking, hub: HubRegistry) -> None:
    commit = hub.repos["org/m"].commit({"a.gguf": WEIGHTS}, branch="refs/pr/1")
    assert (await at.finding.look("org/m", "refs/pr/1")).repository.commit == commit


async def test_h19_a_stale_index_is_seen_before_a_byte_is_fetched(at: Looking, hub: HubRegistry) -> None:
    stale = json.dumps({"weight_map": {f"t{n}": f"model-{n:05}-of-00030.safetensors" for n in range(1, 31)}})
    hub.repos["org/m"].commit(SHARDED | {"model.safetensors.index.json": stale.encode()})
    (told,) = (await at.finding.look("org/m", None)).about["safetensors"]
    assert (told.code, told.blocks) == ("stale_index", True)


async def test_h19_a_shard_that_was_never_uploaded(at: Looking, hub: HubRegistry) -> None:
    hub.repos["org/m"].commit({p: c for p, c in SHARDED.items() if "00002" not in p})
    (told,) = (await at.finding.look("org/m", None)).about["safetensors"]
    assert (told.code, told.blocks) == ("missing_shard", True)
    assert "model-00002-of-00003.safetensors" in told.text


async def test_an_index_is_read_once_a_commit(at: Looking, hub: HubRegistry) -> None:
    for _ in range(3):
        await at.finding.look("org/m", None)
    assert len(hub.seen(r"org/m/resolve/.*index\.json")) == 1
    assert len(hub.seen(r"org/m/resolve/.*config\.json")) == 1


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"weight_map": {"a": "../x"}}'])
async def test_an_index_that_is_none_is_told_and_blocks_nothing(
    at: Looking, hub: HubRegistry, content: bytes
) -> None:
    hub.repos["org/m"].commit(SHARDED | {"model.safetensors.index.json": content})
    (told,) = (await at.finding.look("org/m", None)).about["safetensors"]
    assert (told.code, told.blocks) == ("index_unread", False)


async def test_an_index_that_is_not_what_was_listed_is_not_believed(at: Looking, hub: HubRegistry) -> None:
    hub.on_content("model.safetensors.index.json", said({"weight_map": {"t": "other.safetensors"}}))
    (told,) = (await at.finding.look("org/m", None)).about["safetensors"]
    assert told.code == "index_unread"
    assert "not what its listing says" in told.text


async def test_code_named_by_config_json_is_told(at: Looking, hub: HubRegistry) -> None:
    hub.repos["org/m"].commit(SHARDED | {"config.json": b'{"auto_map": {"AutoModel": "modeling_m.M"}}'})
    assert [one.code for one in (await at.finding.look("org/m", None)).warnings] == ["remote_code"]


async def test_h17_hostile_names_are_refused_by_name_and_the_rest_stands(
    at: Looking, hub: HubRegistry
) -> None:
    evil = ["../../etc/cron.d/x", "/abs", "a\\b", "x\0y", "n" * 300, "Config.json", 5, None, "a//b"]
    hub.repos["org/m"].extra_rows = [{"rfilename": name, "size": 9} for name in evil] + ["text", None]
    look = await at.finding.look("org/m", None)
    assert len(look.listing.odd) == len(evil) + 2
    assert all(odd.why for odd in look.listing.odd)
    assert len(look.groups[0].files) == 3
    assert [one.code for one in look.warnings] == ["odd_files"]


async def test_the_fleet_is_held_against_the_sizes(at: Looking) -> None:
    look = await at.finding.look("org/m", None, [GpuClass("tiny", 1000, 1, 1)])
    assert [one.code for one in look.about["safetensors"]] == ["fits_no_class"]


async def test_the_disk_is_held_against_the_sizes(hub: HubRegistry, tmp_path: Path) -> None:
    async with looking_in(hub, tmp_path, disk_reserve_bytes=2**60) as at:
        look = await at.finding.look("org/m", None)
    (told,) = look.about["safetensors"]
    assert (told.code, told.blocks) == ("disk_too_small", True)


async def test_a_server_without_blobs_is_read_by_its_tree(at: Looking, hub: HubRegistry) -> None:
    commit = hub.repos["org/m"].branches["main"]
    info = hub.repos["org/m"].info(commit, blobs=False)
    hub.on("/api/models/org/m/revision/main", said(info))
    hub.tree_page_rows = 3
    look = await at.finding.look("org/m", None)
    assert [file.size_bytes for file in look.groups[0].files] == [701, 701, 701]
    assert look.groups[0].files[0].sha256 is not None
    assert look.listing.paths == frozenset(SHARDED)
    assert len(hub.seen("/tree/")) == 3


async def test_h15_a_tree_that_never_ends_is_no_listing(at: Looking, hub: HubRegistry) -> None:
    commit = hub.repos["org/m"].branches["main"]
    hub.on("/api/models/org/m/revision/main", said(hub.repos["org/m"].info(commit, blobs=False)))
    hub.next_link = f"{hub.base}/api/models/org/m/tree/{commit}?recursive=true&expand=false"
    with pytest.raises(Unavailable) as told:
        await at.finding.look("org/m", None)
    assert told.value.code == "registry_odd"


async def test_a_renamed_repository_is_told_and_kept_under_its_asked_name(
    at: Looking, hub: HubRegistry
) -> None:
    hub.on("/api/models/old/m/revision/main", redirect("/hub/api/models/org/m/revision/main?blobs=true", 307))
    # Its files are redirected too, as the Hub does.
    look = await at.finding.look("old/m", None)
    assert look.repository.id == "old/m"
    assert "renamed" in [one.code for one in look.warnings]


@pytest.mark.parametrize("name", ["", "a/b/c", "../x", "org/m?x=1", "org/\n"])
async def test_bad_ids_are_refused_unasked(at: Looking, hub: HubRegistry, name: str) -> None:
    with pytest.raises(InvalidRequest):
        await at.finding.look(name, None)
    assert hub.requests == []


# Refusals.


@pytest.mark.parametrize(
    ("token", "repo", "revision", "error", "code"),
    [
        (None, "org/none", None, NotFound, "repository_not_found"),
        ("good", "org/none", None, NotFound, "repository_not_found"),
        (None, "org/m", "nope", NotFound, "revision_not_found"),
        (None, "org/secret", None, NotFound, "repository_not_found"),
        ("bad", "org/m", None, Denied, "bad_token"),
    ],
)
async def test_h22_refusals_are_told_apart(
    hub: HubRegistry, tmp_path: Path, token: str | None, repo: str, revision: str | None,
    error: type[LlmgwError], code: str,
) -> None:  # fmt: skip
    hub.add("org/secret", {}).private = True
    hub.tokens = {"good"}
    async with looking_in(hub, tmp_path, registry_token=token) as at:
        with pytest.raises(error) as told:
            await at.finding.look(repo, revision)
        assert told.value.code == code
        assert told.value.next_steps
        state = at.finding.state()
    assert state is not None
    assert (state.trouble is not None) == (code == "bad_token")
    assert state.tried_again_at is None


async def test_h16_h22_a_gated_repository_can_be_looked_at_and_says_what_is_missing(
    hub: HubRegistry, tmp_path: Path
) -> None:
    hub.add("org/g", SHARDED, gated="manual").granted = {"granted"}
    async with looking_in(hub, tmp_path) as at:
        look = await at.finding.look("org/g", None)
    assert look.listing.gated == "manual"
    assert {one.code for one in look.warnings} == {"gated", "remote_code"}
    assert look.warnings[0].blocks
    assert [one.code for one in look.about["safetensors"]] == ["index_unread"]
    async with looking_in(hub, tmp_path / "1", registry_token="nobody") as at:
        look = await at.finding.look("org/g", None)
    assert [(one.code, one.blocks) for one in look.warnings if one.code == "gated"] == [("gated", True)]
    async with looking_in(hub, tmp_path / "2", registry_token="granted") as at:
        look = await at.finding.look("org/g", None)
    assert [(one.code, one.blocks) for one in look.warnings] == [("gated", False)]
    assert look.about["safetensors"] == ()


# What is sent, and to whom.


async def test_h10_h11_the_token_goes_to_the_registry_and_to_nobody_else(
    hub: HubRegistry, tmp_path: Path
) -> None:
    elsewhere = f"http://127.0.0.1:{hub.cdn_port}/api"
    async with looking_in(hub, tmp_path, registry_token="secret") as at:
        await at.finding.look("org/m", None)
        own = [r for r in hub.seen("") if not r.on_cdn]
        # Also after the relative redirects of plain files, which stay with the registry.
        assert hub.seen("resolve-cache")
        assert {r.token for r in own} == {"secret"}
        hub.on("/api/models", redirect(elsewhere))
        with pytest.raises(LlmgwError):
            await at.finding.search("m")
    (strayed,) = [r for r in hub.seen("") if r.on_cdn]
    assert strayed.token is None


@pytest.mark.parametrize("length", [None, 5])
async def test_packed_answers_are_unpacked(at: Looking, hub: HubRegistry, length: int | None) -> None:
    body = gzip.compress(json.dumps([{"id": "org/packed"}]).encode())
    hub.on("/api/models", status(200, body if length is None else body[:-length], Content_Encoding="gzip"))
    if length is None:
        found, _ = await at.finding.search("m")
        assert found[0].row.id == "org/packed"
    else:
        with pytest.raises(Unavailable):
            await at.finding.search("m")


@pytest.mark.parametrize("packed", [False, True])
async def test_answers_without_end_are_cut_off(at: Looking, hub: HubRegistry, packed: bool) -> None:
    junk = b"[" + b" " * 20_000_000
    headers = {"Content_Encoding": "gzip"} if packed else {}
    hub.on("/api/models", status(200, gzip.compress(junk) if packed else junk, **headers))
    with pytest.raises(Unavailable) as told:
        await at.finding.search("m")
    assert "more than 8000000 bytes" in told.value.text


@pytest.mark.parametrize(
    "body", [b"<html>log in</html>", b"[" * 3_000_000, b"", b'{"error": "x"}', b"\xff\xfe"]
)
async def test_answers_that_are_none_are_told_as_the_registrys_trouble(
    at: Looking, hub: HubRegistry, body: bytes
) -> None:
    hub.on("/api/models", status(200, body))
    with pytest.raises(Unavailable) as told:
        await at.finding.search("m")
    assert told.value.code == "registry_odd"
    state = at.finding.state()
    assert state is not None
    assert state.trouble is not None
    # It answers, so it is asked again, and what it says then counts.
    assert (await at.finding.search("org"))[0]
    assert at.finding.state() == state.__class__(state.base_url, False, None, None, None)


async def test_a_control_character_in_the_registrys_own_words_is_shown_not_obeyed(
    at: Looking, hub: HubRegistry
) -> None:
    async def act(x: Exchange) -> None:
        await x.head(403, X_Error_Message="\x1b[2Jno", Content_Length=0)

    hub.on("/api/models", act)
    with pytest.raises(LlmgwError) as told:
        await at.finding.search("m")
    assert told.value.text.isprintable()
