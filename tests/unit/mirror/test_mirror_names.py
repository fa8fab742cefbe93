"""Hostile names are refused by every operating system's rules, on every one of them (H17)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_kit.errors import InvalidRequest
from llmgw_mirror.core.names import check_name, check_path, check_together

GOOD = [
    "model.safetensors",
    "model-00001-of-00015.safetensors",
    "a/b/c.json",
    ".gitattributes",
    "onnx/model_q4f16.onnx",
    "с кириллицей/файл.bin",
    "name with blanks inside.gguf",
    "console.json",
    "com10.txt",
    "a..b",
    "~tilde",
]

BAD = {
    "parent": "../../x",
    "parent inside": "a/../b",
    "a blank that is none": "a\u1680b",
    "no-break space": "a\u00a0b",
    "line separator": "a\u2028b",
    "parent at the end": "a/..",
    "here": "./x",
    "absolute": "/etc/passwd",
    "empty": "",
    "double slash": "a//b",
    "trailing slash": "a/",
    "backslash": "a\\b",
    "windows parent": "..\\..\\x",
    "drive": "C:x",
    "alternate stream": "x:y",
    "device": "nul",
    "device with extension": "Con.json",
    "device in a folder": "a/LPT1/b",
    "superscript device": "com¹",
    "device with blank": "aux .txt",
    "NUL": "a\0b",
    "newline": "a\nb",
    "escape": "a\x1b[2Jb",
    "right-to-left override": "a\u202etxt.exe",
    "zero width": "a\u200bb",
    "surrogate": "a\ud800b",
    "trailing dot": "a./b",
    "trailing blank": "a ",
    "leading blank": " a",
    "wildcard": "*.bin",
    "pipe": "a|b",
    "long part": "x" * 256,
    "long path": "/".join(["x" * 200] * 6),
}


@pytest.mark.parametrize("path", GOOD)
def test_taken(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize("path", BAD.values(), ids=BAD.keys())
def test_refused(path: str) -> None:
    with pytest.raises(InvalidRequest):
        check_path(path)


@pytest.mark.parametrize("name", ["org/model", "gpt2", "v1", "a" * 200])
def test_names_taken(name: str) -> None:
    assert check_name("model", name) == name


@pytest.mark.parametrize("name", ["", "/org/model", "org//model", "..", "org/..", "a" * 201, "a\tb", "a:b"])
def test_names_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^model "):
        check_name("model", name)


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        (["a", "a"], "given twice"),
        (["Readme.md", "README.md"], "case or accents"),
        (["caf\u00e9", "cafe\u0301"], "case or accents"),
        (["a", "a/b"], "needs it as a folder"),
        (["A/b", "a"], "needs it as a folder"),
    ],
)
def test_paths_that_cannot_lie_together(paths: list[str], says: str) -> None:
    for order in (paths, paths[::-1]):
        with pytest.raises(InvalidRequest, match=says):
            check_together(order)


def test_paths_that_can_lie_together() -> None:
    check_together(["a/b", "a/c", "ab", "a.b"])


@given(st.text(max_size=60))
def test_what_is_taken_stays_inside_on_every_system(path: str) -> None:
    try:
        check_path(path)
    except InvalidRequest:
        return
    assert not path.startswith(("/", "\\"))
    assert "\\" not in path
    assert ":" not in path
    assert ".." not in path.split("/")
    assert path.isprintable()
