"""What Hub clients may know: revisions, listings, and why a file is not here. H19 and H23 by construction."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_mirror.core.hub import (
    At,
    HeldFile,
    Missing,
    Offer,
    at_commit,
    commits,
    find,
    look_up,
    offer,
    own_commit,
    references,
    wait_s,
)
from llmgw_mirror.core.versions import (
    FileView,
    Proof,
    Receipt,
    Repository,
    Source,
    VersionView,
    WeightsState,
    Wish,
)

A, B, C = "a" * 40, "b" * 40, "c" * 40
SHA, GIT = "1" * 64, "2" * 40


def made(
    version: str, commit: str | None = A, *, names: tuple[str, ...] = ("main",), at: float = 1.0,
    held: tuple[str, ...] = ("config.json",), wished: tuple[str, ...] = (), stuck: tuple[str, ...] = (),
    listing: tuple[str, ...] | None = None,
) -> Offer:  # fmt: skip
    return Offer(
        model="m", version=version, repository="org/m", commit=commit, names=frozenset(names), created_at=at,
        wished=frozenset({*held, *wished, *stuck}),
        held={path: HeldFile(path, SHA, 1, None) for path in held},
        stuck=dict.fromkeys(stuck, "why"), listing=None if listing is None else frozenset(listing),
    )  # fmt: skip


def wished(*files: Source, repository: Repository | None = None, model: str = "org/m") -> Wish:
    return Wish(model, "v1", 5.0, files, repository)


RECEIPT = Receipt(SHA, 7, Proof.SHA256, 0.0)


@pytest.mark.parametrize(
    ("source", "etag", "lfs"),
    [
        (Source("w", "http://h/w", sha256=SHA), SHA, True),
        (Source("w", "http://h/w", sha256=SHA, git_id=GIT), SHA, True),
        (Source("w", "http://h/w", git_id=GIT), GIT, False),
        (Source("w", "http://h/w"), SHA, True),
    ],
    ids=["in LFS", "in LFS, with its pointer's id", "outside LFS", "nothing published"],
)
def test_a_file_is_called_what_the_registry_calls_it(source: Source, etag: str, *, lfs: bool) -> None:
    got = offer(wished(source, repository=Repository("org/m", A)), {"w": RECEIPT}, {}, None)
    assert got is not None
    assert (got.held["w"].etag, got.held["w"].lfs) == (etag, lfs)


def test_a_version_of_plain_urls_gets_its_commit_when_it_is_whole() -> None:
    wish = wished(Source("a", "http://h/a"), Source("b", "http://h/b"))
    half = offer(wish, {"a": RECEIPT}, {}, None)
    whole = offer(wish, {"a": RECEIPT, "b": RECEIPT}, {}, None)
    assert half is not None
    assert whole is not None
    assert (half.commit, half.whole, half.names) == (None, False, {"v1"})
    assert whole.commit == own_commit(whole.held.values())
    assert whole.listing == {"a", "b"}
    other = offer(replace(wish, version="v2"), {"a": RECEIPT, "b": RECEIPT}, {}, None)
    assert other is not None
    assert other.commit == whole.commit, "the same content is the same commit everywhere"


@pytest.mark.parametrize(
    ("model", "offered"),
    [("org/m", True), ("gpt2", True), ("a/b/c", False), ("org/m ", False), ("org/", False), ("-x/m", False)],
)
def test_names_that_a_client_could_ask_for(model: str, *, offered: bool) -> None:
    assert (offer(wished(Source("a", "http://h/a"), model=model), {}, {}, None) is not None) is offered


def test_a_name_means_the_newest_that_is_whole() -> None:
    old = made("old", A, at=1.0)
    new = made("new", B, at=2.0, wished=("model.bin",))
    assert find([old, new], "main") == At(A, (old,))
    assert find([old, replace(new, wished=new.held.keys())], "main").commit == B  # type: ignore[union-attr]
    assert find([new], "main") == At(B, (new,)), "until something is whole, what is on its way"


@pytest.mark.parametrize(
    ("revision", "commit"),
    [
        ("main", A), ("HEAD", A), ("refs/heads/main", A), ("v2", B), ("refs/tags/v2", B), ("refs/pr/1", C),
        (A, A), (B[:7], B), (A[:6], None), ("d" * 40, None), ("", None), ("other", None), ("MAIN", None),
    ],
)  # fmt: skip
def test_spellings_of_a_revision(revision: str, commit: str | None) -> None:
    offers = [
        made("1", A), made("2", B, names=("v2",), at=2.0), made("3", C, names=("refs/pr/1",), at=3.0)
    ]  # fmt: skip
    at = find(offers, revision)
    assert (None if at is None else at.commit) == commit


def test_a_short_commit_that_two_have_means_neither() -> None:
    twins = [made("1", "abcdef1" + "0" * 33, names=()), made("2", "abcdef1" + "1" * 33, names=())]
    assert find(twins, "abcdef1") is None
    assert find(twins, "abcdef10") == At(twins[0].commit, (twins[0],))


def test_main_is_the_newest_where_nobody_asked_for_it() -> None:
    pinned = [made("1", A, names=()), made("2", B, names=("v2",), at=2.0)]
    at = find(pinned, "main")
    assert at is not None
    assert at.commit == B
    assert find([], "main") is None


def test_listings_are_those_of_whole_versions_united() -> None:
    safe = made("safe", held=("config.json", "model.safetensors"))
    gguf = made("gguf", held=("config.json", "model.gguf"), at=2.0, names=())
    coming = made("bin", held=("extra.json",), wished=("model.bin",), at=3.0)
    at = at_commit([coming, gguf, safe], A)
    assert list(at.listed()) == ["config.json", "model.gguf", "model.safetensors"]
    assert at.offers == (safe, gguf, coming), "oldest first"
    assert at_commit([coming], A).listed() == {}


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("config.json", None),
        ("model.bin", Missing.COMING),
        ("broken.bin", Missing.STUCK),
        ("unchosen.gguf", Missing.NOT_CHOSEN),
        ("never.txt", Missing.NO_SUCH_FILE),
    ],
)
def test_why_a_file_is_not_here(path: str, why: Missing | None) -> None:
    listing = ("config.json", "model.bin", "broken.bin", "unchosen.gguf")
    at = At(A, (made("1", wished=("model.bin",), stuck=("broken.bin",), listing=listing),))
    found = look_up(at, path)
    if why is None:
        assert isinstance(found, HeldFile)
    else:
        assert isinstance(found, tuple)
        assert found[0] is why


def test_without_a_listing_nothing_is_said_to_be_missing_for_good() -> None:
    found = look_up(At(A, (made("1", listing=None),)), "never.txt")
    assert found == (Missing.NOT_CHOSEN, ())
    plain = made("1", None, wished=("b",), listing=("config.json", "b"))
    assert look_up(At(None, (plain,)), "never.txt") == (Missing.NOT_CHOSEN, ())


def test_a_file_stuck_in_one_version_may_come_with_another() -> None:
    stuck, coming = made("1", stuck=("w",)), made("2", wished=("w",), at=2.0)
    assert look_up(at_commit([stuck, coming], A), "w") == (Missing.COMING, (coming,))
    here = made("3", held=("w",), at=3.0)
    assert isinstance(look_up(at_commit([stuck, coming, here], A), "w"), HeldFile)


def test_references_name_only_what_is_whole() -> None:
    offers = [made("1", A), made("2", B, names=("next",), wished=("w",), at=2.0), made("3", C, names=("v3",))]
    assert references(offers) == {"main": A, "v3": C}
    assert [at.commit for at in commits(offers)] == [B, A, C]


states = st.sampled_from(["held", "coming", "stuck", "absent"])
paths = ("a", "b", "c")


@given(
    st.lists(
        st.tuples(st.tuples(states, states, states), st.sampled_from([A, B]), st.booleans()),
        min_size=1, max_size=5,
    )
)  # fmt: skip
def test_no_listing_ever_names_half_a_version(rows: list[tuple[tuple[str, ...], str, bool]]) -> None:
    """H19 and H23, whatever is held of whatever: what is listed is held, every version is listed whole or
    not at all, and no file that somebody chose is ever said to be missing for good."""
    offers = []
    for n, (kinds, commit, listed) in enumerate(rows):
        named = {kind: tuple(p for p, k in zip(paths, kinds, strict=True) if k == kind) for kind in kinds}
        offers.append(
            made(
                str(n), commit, at=float(n), held=named.get("held", ()), wished=named.get("coming", ()),
                stuck=named.get("stuck", ()), listing=paths if listed else None,
            )
        )  # fmt: skip
    offers = [one for one in offers if one.wished]
    for commit in (A, B, "main"):
        at = find(offers, commit)
        if at is None:
            continue
        files = at.listed()
        whole = [one for one in at.offers if one.whole]
        assert set(files) == {path for one in whole for path in one.held}
        for path in paths:
            found = look_up(at, path)
            chosen = [one for one in at.offers if path in one.wished]
            assert isinstance(found, HeldFile) is any(path in one.held for one in chosen)
            if not isinstance(found, HeldFile):
                assert (found[0] in (Missing.COMING, Missing.STUCK)) is bool(chosen)
                assert found[0] is not Missing.NO_SUCH_FILE, "every path is one of the repository"


def view(*files: FileView) -> VersionView:
    return VersionView("m", "v", 0.0, files)


def file(
    path: str, state: WeightsState, *, size: int | None = 100, got: int = 0, rate: float | None = None,
    eta: float | None = None,
) -> FileView:  # fmt: skip
    return FileView(Source(path, "http://h/x"), state, size, got, rate_bytes_s=rate, eta_s=eta)


MOVES = file("a", WeightsState.FETCHING, got=50, rate=10.0, eta=5.0)


@pytest.mark.parametrize(
    ("files", "path", "wait"),
    [
        ([file("a", WeightsState.FETCHING, eta=7.0)], "a", 7.0),
        ([file("a", WeightsState.FETCHING, eta=7.0), file("b", WeightsState.FETCHING, eta=9.0)], None, 9.0),
        ([file("a", WeightsState.PRESENT)], None, 0.0),
        ([file("a", WeightsState.ABSENT)], "a", None),
        ([MOVES, file("b", WeightsState.ABSENT)], None, 15.0),
        ([MOVES, file("b", WeightsState.ABSENT, size=None)], None, None),
        ([file("a", WeightsState.ABSENT), file("b", WeightsState.ABSENT)], None, None),
    ],
    ids=["one", "slowest", "here", "unknown", "at the rate of what moves", "no size", "nothing moves"],
)  # fmt: skip
def test_how_long_to_wait(files: list[FileView], path: str | None, wait: float | None) -> None:
    assert wait_s(view(*files), path) == wait
