"""What `llmgwctl mirror` prints, whole pages as text: as the page on the terminal's look draws them."""

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from llmgw.v1 import mirror_pb2 as pb
from llmgw.v1 import operator_pb2
from llmgw_controller.cli.mirror import (
    bundles,
    downloads,
    fetching,
    finding,
    past,
    registry,
    removing,
    versions,
)
from llmgw_controller.cli.mirror.downloads import Downloads
from llmgw_controller.cli.mirror.fleet import Fleet, classes_of
from llmgw_controller.cli.mirror.words import offer
from llmgw_controller.cli.page import NARROWEST, WIDTH, Page
from llmgw_kit.errors import InvalidRequest

from . import mirrored
from .mirrored import COMMIT, GB, NOW
from .test_harmless import BAD, fill

PAGES = Path(__file__).parent / "pages"

CHECKED = Fleet((pb.FleetGpuClass(name="H100", memory_bytes=80 * GB),))
UNCHECKED = Fleet((), unknown="no controller answered in 3 s (127.0.0.1:7070 refused)")


def moving() -> Downloads:
    return Downloads((mirrored.qwen(), mirrored.mistral()), mirrored.registry_away(), 14 * 10**12, 7_200 * GB)


def wish(**changes: object) -> fetching.Wish:
    plain = {"repository": "Qwen/Qwen3-14B", "revision": "main", "groups": ("safetensors",), "paths": (),
             "name": ("qwen3-14b", "v1"), "accepted": ()}  # fmt: skip
    return fetching.Wish(**{**plain, **changes})  # type: ignore[arg-type]


def asked() -> pb.FetchRepositoryResponse:
    files = [mirrored.file("model.safetensors", "absent"), mirrored.file("config.json", "absent", 728)]
    files[1].companion = True
    one = mirrored.version("qwen3-14b", *files, name="v1")
    one.repository.CopyFrom(pb.Repository(id="Qwen/Qwen3-14B", commit=COMMIT, revision="main"))
    return pb.FetchRepositoryResponse(
        version=one, bytes_to_fetch=4 * GB + 728, warnings=mirrored.files().warnings
    )


def held() -> removing.Nodes:
    node = operator_pb2.NodeWeights(node_id="h100-01", used_by=["qwen3-8b/1"], wanted=True)
    return removing.Nodes((node,))


def history() -> pb.ListHistoryResponse:
    def entry(ago: float, kind: str, **more: object) -> pb.HistoryEntry:
        plain = {"at_unix_s": NOW - ago, "kind": kind, "model": "qwen3-14b", "version": COMMIT}
        return pb.HistoryEntry(**{**plain, **more})  # type: ignore[arg-type]

    return pb.ListHistoryResponse(entries=[
        entry(646, "published", bytes=28 * GB, text="5 files verified"),
        entry(900, "quarantined", path="model-00001-of-00004.safetensors", text="read as 91f0…"),
        entry(90_000, "asked", asked_by="mara@ops-1"),
    ])  # fmt: skip


def bundle(name: str = "qwen.llmgw", **more: object) -> pb.Bundle:
    plain = {"name": name, "bytes": 28 * GB, "created_at_unix_s": NOW - 3600, "sha256": "12" * 32,
             "versions": [pb.VersionName(model="qwen3-14b", version=COMMIT)]}  # fmt: skip
    return pb.Bundle(**{**plain, **more})  # type: ignore[arg-type]


def all_bundles() -> pb.ListBundlesResponse:
    rows = [bundle(), bundle("qwen-2.llmgw", partial=True, since="qwen.llmgw")]
    return pb.ListBundlesResponse(folder="/srv/bundles", bundles=rows)


def gone() -> pb.ListRemovedResponse:
    return pb.ListRemovedResponse(versions=[pb.RemovedVersion(
        model="qwen3-14b", version=COMMIT, removed_at_unix_s=NOW - 60, restorable_until_unix_s=NOW + 86_400,
        bytes=28 * GB, asked_by="mara@ops-1",
    )])  # fmt: skip


def freed(**more: object) -> pb.RemoveVersionResponse:
    plain = {"freed_bytes": 28 * GB, "shared_bytes": 11_000_000, "readers": ["h100-02"],
             "restorable_until_unix_s": NOW + 86_400}  # fmt: skip
    return pb.RemoveVersionResponse(**{**plain, **more})  # type: ignore[arg-type]


def known() -> pb.WeightsVersion:
    return mirrored.qwen()


DRAW: dict[str, Callable[[Page], object]] = {
    "downloads": lambda page: downloads.render_downloads(page, moving(), at=NOW),
    "search": lambda page: finding.render_search(page, mirrored.found(), words="qwen3"),
    "files": lambda page: finding.render_files(page, mirrored.files(), CHECKED),
    "fetch-dry": lambda page: fetching.render_asked(page, asked(), UNCHECKED, wish(), dry_run=True),
    "versions": lambda page: versions.render_versions(page, mirrored.versions()),
    "versions-files": lambda page: versions.render_versions(
        page, pb.ListVersionsResponse(versions=mirrored.versions().versions[2:]), with_files=True
    ),
    "remove": lambda page: removing.render_removed(page, known(), freed(), held(), dry_run=False, at=NOW),
    "removed": lambda page: removing.render_list(page, gone(), at=NOW),
    "history": lambda page: past.render_history(page, history(), at=NOW, limit=100),
    "bundles": lambda page: bundles.render_bundles(page, all_bundles(), at=NOW),
}


@pytest.mark.parametrize("name", DRAW)
def test_a_page_is_as_it_was_last_agreed_on(name):
    page = Page(width=WIDTH)
    DRAW[name](page)
    assert page.plain() + "\n" == (PAGES / f"mirror-{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DRAW)
def test_a_page_fits_100_columns(name):
    page = Page(width=WIDTH)
    DRAW[name](page)
    assert max(len(line) for line in page.plain().split("\n")) <= WIDTH


@pytest.mark.parametrize("name", ["search", "files", "versions", "removed", "bundles", "history"])
def test_a_table_fits_a_narrow_terminal(name):
    page = Page(width=NARROWEST)
    DRAW[name](page)
    commands = [line for line in page.plain().split("\n") if "llmgwctl" not in line]
    assert max(len(line) for line in commands) <= NARROWEST


def test_bars_in_ascii_have_no_other_glyph():
    page = Page(ascii_only=True, width=WIDTH)
    downloads.render_downloads(page, moving(), at=NOW)
    assert "#######............." in page.plain()
    assert "█" not in page.plain()


EVIL: dict[str, Callable[[Page], object]] = {
    "downloads": lambda page: downloads.render_downloads(
        page, Downloads((fill(mirrored.qwen()),), fill(mirrored.registry_away()), None, None), at=NOW
    ),
    "search": lambda page: finding.render_search(page, fill(mirrored.found()), words="x"),
    "files": lambda page: finding.render_files(page, fill(mirrored.files()), Fleet((), unknown="\x1b[31m")),
    "registry": lambda page: registry.render_registry(page, fill(mirrored.registry_away())),
    "fetch": lambda page: fetching.render_asked(page, fill(asked()), CHECKED, wish(), dry_run=True),
    "versions": lambda page: versions.render_versions(page, fill(mirrored.versions()), with_files=True),
    "remove": lambda page: removing.render_removed(
        page, fill(known()), fill(freed()), held(), dry_run=True, at=NOW
    ),
    "removed": lambda page: removing.render_list(page, fill(gone()), at=NOW),
    "history": lambda page: past.render_history(page, fill(history()), at=NOW, limit=1),
    "bundles": lambda page: bundles.render_bundles(page, fill(all_bundles()), at=NOW),
}  # fmt: skip


@pytest.mark.parametrize("name", EVIL)
def test_h17_no_name_of_a_registry_moves_the_cursor(name):
    page = Page()
    EVIL[name](page)
    text = page.plain()
    assert "^[" in text, "the evil reached the page"
    assert not BAD.search(text.replace("\n", ""))
    assert not any(line.startswith("error: forged") for line in text.split("\n"))


def test_m20_one_odd_row_hides_no_other():
    page = Page()
    finding.render_search(page, mirrored.found(), words="x")
    text = page.plain()
    assert "cannot be read: its id is a number" in text
    assert "Qwen/Qwen3-14B" in text
    assert [one["odd"] is None for one in finding.search_json(mirrored.found())["repositories"]] == [
        True, False, True,
    ]  # fmt: skip


def test_h16_the_registrys_word_for_gated_is_kept():
    assert [one["gated"] for one in finding.search_json(mirrored.found())["repositories"]] == [
        None, None, "manual",
    ]  # fmt: skip


def test_m21_a_registry_that_is_away_is_one_line_and_hides_nothing():
    page = Page()
    assert downloads.render_downloads(page, Downloads((), mirrored.registry_away(), None, None), at=NOW) == 1
    assert [line.startswith("!! registry: HTTP 503") for line in page.plain().split("\n")].count(True) == 1
    assert downloads.render_downloads(Page(), Downloads((), mirrored.registry(), None, None), at=NOW) == 0


@pytest.mark.parametrize(
    ("cap", "said"),
    [
        ((None, None), None),
        ((20_000_000, None), "at most 20 MB/s"),
        ((20_000_000, NOW + 3600), "at most 20 MB/s until 15:32"),
        ((0, NOW + 86_400), "the schedule lets nothing through until 1 Dec 14:32"),
    ],
)
def test_a_cap_is_told_with_its_end_and_none_is_not(cap, said):
    """A fetch that stands still by a setting must not look broken."""
    page = Page(width=WIDTH)
    answer = Downloads((mirrored.qwen(),), mirrored.registry(), None, None, *cap)
    downloads.render_downloads(page, answer, at=NOW)
    assert page.plain().split("\n")[0] == "data 0 s old · 1 fetching, 0 failed · 112 MB/s" + (
        "" if said is None else f" · {said}"
    )


def test_no_registry_is_told_with_what_to_do_and_is_no_trouble():
    page = Page()
    assert registry.render_registry(page, pb.GetRegistryResponse()) == 0
    assert "no registry is configured" in page.plain()
    assert registry.registry_json(pb.GetRegistryResponse())["base_url"] is None


def test_m23_a_version_is_as_its_worst_file_in_words():
    file, version = mirrored.file, mirrored.version
    told = {
        "failed": version("m", file("a", "present"), file("b", "failed"), file("c", "fetching")),
        "fetching": version("m", file("a", "present"), file("b", "absent"), file("c", "fetching")),
        "waiting": version("m", file("a", "absent", None)),
        "stopped": version("m", file("a", "absent", cancelled=True)),
        "present": version("m", file("a", "present")),
    }
    assert [downloads.summary(one) for one in told.values()] == [
        "FAILED: 1 of 3 files, so the version cannot be used",
        "fetching: 1 of 3 files present, 4 of 12 GB",
        "waiting: 0 of 1 file present, 0 B",
        "stopped: 0 of 1 file present, 0 of 4 GB",
        "present: 1 file, 4 GB",
    ]


@pytest.mark.parametrize(
    ("states", "ended"),
    [
        (["present", "failed"], True),
        (["present", "absent"], False),
        (["verifying"], False),
        (["fetching", "failed"], False),
        (["present"], True),
    ],
)
def test_a_fetch_has_ended_when_nothing_moves_or_waits(states, ended):
    one = mirrored.version("m", *(mirrored.file(f"{n}", state) for n, state in enumerate(states)))
    assert fetching.ended(one) is ended


def test_a_stopped_file_is_waited_for_by_nobody():
    assert fetching.ended(mirrored.version("m", mirrored.file("a", "absent", cancelled=True)))


def test_an_unknown_size_is_a_dash_and_no_share_of_it_is_drawn():
    """Unknown is `-`, never 0."""
    page = Page(width=WIDTH)
    downloads.version_lines(
        page, mirrored.version("m", mirrored.file("a", "fetching", None, received_bytes=9))
    )
    assert page.plain().split("\n")[1].endswith(f"fetching  {'·' * 20}     -  -")


def test_no_share_is_100_per_cent_before_all_is_here():
    page = Page(width=WIDTH)
    almost = mirrored.file("a", "fetching", 1000, received_bytes=999)
    downloads.version_lines(page, mirrored.version("m", almost))
    assert " 99 %" in page.plain()


def test_a_long_version_is_cut_where_it_waits():
    files = [*mirrored.shards(50, "absent"), mirrored.file("z", "fetching"), mirrored.file("y", "failed")]
    page = Page(width=WIDTH)
    downloads.version_lines(page, mirrored.version("m", *files), most=4)
    text = page.plain()
    assert "!! y" in text
    assert "   z" in text
    assert "… 48 more that wait" in text


def test_the_line_that_is_offered_is_pinned_to_the_commit_that_was_looked_at():
    """M19: whatever the branch does between two commands."""
    words = wish(paths=("a b.bin",), accepted=("gated",)).again(COMMIT)
    assert shlex.join(words) == (
        f"llmgwctl mirror fetch Qwen/Qwen3-14B --revision {COMMIT} --group safetensors --file 'a b.bin'"
        " --as qwen3-14b@v1 --accept gated"
    )


def test_a_line_that_is_too_long_is_one_to_a_shell():
    page = Page(width=NARROWEST)
    given = wish(paths=("a b.bin",), accepted=("gated", "stale_index")).again(COMMIT)
    offer(page, given)
    text = page.plain()
    assert len(text.split("\n")) > 1
    script = f"printf '%s\\n' {text.removeprefix('next:')}"
    read = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert read.stdout.splitlines() == given
    assert not any(line.split()[-2].startswith("--") for line in text.split("\n")[:-1]), "with their values"


def test_a_group_is_marked_when_it_blocks():
    answer = mirrored.files()
    answer.groups[1].warnings[0].blocks = True
    page = Page(width=WIDTH)
    finding.render_files(page, answer, CHECKED)
    assert "!!  pytorch" in page.plain()
    assert "--accept pickle" in page.plain()


def test_what_is_accepted_blocks_no_more():
    page = Page(width=WIDTH)
    fetching.render_asked(page, asked(), CHECKED, wish(accepted=("stale_index",)), dry_run=True)
    assert "!!" not in page.plain()
    assert " * stale_index" in page.plain()


def node(name: str, *devices: tuple[str, int | None], fabric: str | None = None, **more: object):
    rows = [
        operator_pb2.DeviceRow(device={"gpu_class": kind, "memory_total_bytes": size})
        for kind, size in devices
    ]
    return operator_pb2.NodeRow(node_id=name, devices=rows, fabrics=[fabric] if fabric else [], **more)  # type: ignore[arg-type]


def test_a_fleet_is_its_smallest_memory_and_largest_nodes():
    nodes = [
        node("a", ("H100", 80), ("H100", 80), fabric="ib"),
        node("b", ("H100", 80), ("H100", 79), fabric="ib"),
        node("c", ("H100", 80)), node("d", ("L4", 24), ("??", None)),
        node("lost", *[("H100", 80)] * 8, state=operator_pb2.NODE_STATE_LOST),
    ]  # fmt: skip
    found = [(c.name, c.memory_bytes, c.devices_per_node, c.nodes_per_fabric) for c in classes_of(nodes)]
    assert found == [("H100", 79, 2, 2), ("L4", 24, 1, 1)]


@pytest.mark.parametrize(
    "said",
    [
        lambda: downloads.downloads_json(moving()),
        lambda: finding.search_json(mirrored.found()),
        lambda: finding.files_json(mirrored.files(), UNCHECKED),
        lambda: registry.registry_json(mirrored.registry_away()),
        lambda: fetching.fetch_json(asked(), UNCHECKED, dry_run=True),
        lambda: versions.versions_json(mirrored.versions()),
        lambda: removing.removed_json(known(), freed(), held(), dry_run=False),
        lambda: removing.list_json(gone()),
        lambda: past.history_json(history()),
        lambda: bundles.bundles_json(all_bundles()),
    ],
)
def test_json_has_a_schema_and_can_be_written(said):
    value = said()
    assert value["schema"].startswith("llmgw.mirror-")
    assert value["schema"].endswith("/1")
    json.dumps(value)


def test_unknown_is_null_in_json():
    one = mirrored.version("m", mirrored.file("a", "fetching", None))
    said = versions.versions_json(pb.ListVersionsResponse(versions=[one]))
    assert said["disk_free_bytes"] is None
    assert said["versions"][0]["total_bytes"] is None
    assert said["versions"][0]["files"][0]["size_bytes"] is None
    assert said["versions"][0]["files"][0]["proof"] is None


@pytest.mark.parametrize("width", [80, 100, 140])
def test_what_is_on_its_way_fits_the_page(width):
    """A line that wraps is drawn over where it is not."""
    page = Page(width=width)
    downloads.render_downloads(page, moving(), at=NOW)
    assert max(len(line) for line in page.plain().splitlines()) <= width


def test_what_stops_the_usual_choice_is_trouble_and_the_next_step_takes_it():
    answer = mirrored.files()
    best = next(group for group in answer.groups if group.preselected)
    best.warnings.append(pb.Warning(code="pickle_only", text="pickles", blocks=True))
    page = Page()
    assert finding.render_files(page, answer, CHECKED) == 1
    assert "--accept pickle_only" in " ".join(page.plain().split())


def test_a_mistyped_group_is_refused_by_name():
    with pytest.raises(InvalidRequest, match="has no group 'safetensor'.*safetensors"):
        finding.render_files(Page(), mirrored.files(), CHECKED, groups=("safetensor",))


def test_a_model_of_which_nothing_is_here_is_named():
    page = Page()
    assert versions.render_versions(page, pb.ListVersionsResponse(), model="qwen") == 1
    assert "no version of 'qwen' is here" in page.plain()
