"""Names that become paths, listings that could harm, sizes, GPU names."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.core.devices import (
    Device,
    DeviceState,
    ForeignProcess,
    brief,
    gpu_class_of,
)
from llmgw_agent.core.faults import xid
from llmgw_agent.core.paths import file_path, folder_name
from llmgw_agent.core.sizes import parse_size, show_size
from llmgw_agent.core.weights import WeightsKey, parse_listing
from llmgw_kit.errors import InvalidRequest
from llmgw_kit.ids import DeviceId

KEY = WeightsKey("org/model", "v1")
DIGEST = "a" * 64


@given(st.text())
def test_a_folder_name_is_one_harmless_component_or_refused(name: str) -> None:
    try:
        made = folder_name(name, what="model")
    except InvalidRequest:
        return
    assert "/" not in made
    assert "\0" not in made
    assert made not in (".", "..")
    assert not made.startswith(".")


def test_folder_names_differ_where_names_differ() -> None:
    assert folder_name("org/model", what="m") == "org%2Fmodel"
    assert folder_name("org%2Fmodel", what="m") == "org%252Fmodel"


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/./b", "a\\b", "a\0b", "a\nb", "x" * 300, "a/"]
)
def test_paths_that_leave_or_confuse_are_refused(path: str) -> None:
    with pytest.raises(InvalidRequest):
        file_path(path, what="file")


@given(st.text())
def test_a_path_that_passes_stays_inside(path: str) -> None:
    try:
        made = file_path(path, what="file")
    except InvalidRequest:
        return
    assert not made.is_absolute()
    assert ".." not in made.parts


def listing(*files: Any, **over: Any) -> dict[str, Any]:
    return {"model": KEY.model, "version": KEY.version, "files": list(files)} | over


def one(path: Any = "f", size: Any = 1, sha256: Any = DIGEST) -> dict[str, Any]:
    return {"path": path, "size": size, "sha256": sha256}


def test_a_listing_is_sorted_and_summed() -> None:
    parsed = parse_listing(listing(one("b", 2), one("a", 3)), KEY)
    assert [file.path for file in parsed.files] == ["a", "b"]
    assert parsed.bytes == 5


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        "x",
        {},
        listing(),
        listing(one("../x")),
        listing(one(size=-1)),
        listing(one(size=True)),
        listing(one(size="1")),
        listing(one(sha256=None)),
        listing(one(sha256="A" * 64)),
        listing(one(sha256="aa")),
        listing(one(), one()),
        listing(one("a"), one("a/b")),
        listing("f"),
        listing(one(path=None)),
        listing(one(), model="other"),
        listing(one(), version="v2"),
        listing(one("\ud800")),
    ],
)
def test_listings_that_could_harm_are_refused(body: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse_listing(body, KEY)


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GiB", 24 << 30), ("1 MB", 10**6), ("0.5KiB", 512), (17, 17), ("17", 17), (" 3 tib ", 3 << 40)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "1 XB", "-1", "1e9", "1,5GB"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_size(text)


def test_sizes_for_people() -> None:
    assert [show_size(n) for n in (None, 0, 1023, 1536, 250 << 20, 3 << 30, 5 << 40)] == [
        "-", "0 B", "1023 B", "1.5 KiB", "250 MiB", "3.0 GiB", "5.0 TiB",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("product", "gpu_class"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100"), ("Tesla T4", "T4"), ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"), ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA GH200 480GB", "GH200"), ("NVIDIA H100 NVL", "H100"), ("NVIDIA B200", "B200"),
        ("Tesla V100-SXM2-32GB", "V100"), ("NVIDIA", "NVIDIA"),
    ],
)  # fmt: skip
def test_gpu_classes(product: str, gpu_class: str) -> None:
    assert gpu_class_of(product) == gpu_class


def device(name: str, **fields: Any) -> Device:
    return Device(DeviceId(name), int(name[-1]), "H100", "nvidia", **fields)


def test_only_a_changed_state_fault_or_user_is_told_at_once() -> None:
    cool = device("gpu-0", temperature_celsius=40.0)
    assert brief((cool,)) == brief((device("gpu-0", temperature_celsius=70.0),))
    different: tuple[dict[str, Any], ...] = (
        {"state": DeviceState.MISSING, "reason": "vanished"},
        {"fault": xid(13, 5.0)},
        {"notes": ("slowed down by heat",)},
        {"foreign": (ForeignProcess(7, "python3", "eve", 1),)},
    )
    for news in different:
        assert brief((cool,)) != brief((device("gpu-0", **news),)), news
    on_it = ForeignProcess(7, "python3", "eve", 1)
    grown = ForeignProcess(7, "python3", "eve", 2)
    assert brief((device("gpu-0", foreign=(on_it,)),)) == brief((device("gpu-0", foreign=(grown,)),))
