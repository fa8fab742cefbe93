"""Models as people write them: what is understood, and what each mistake is told."""

import copy
import json
from typing import Any

import pytest

from llmgw_controller.catalog_file import canonical_json, parse_model, parse_model_json, parse_models
from llmgw_controller.catalog_schema import FileWritten, ModelWritten, ProfileWritten
from llmgw_controller.core.catalog import Engine, Source, spec_hash
from llmgw_kit.errors import InvalidRequest

PLAIN: dict[str, Any] = {
    "name": "tiny",
    "aliases": ["Tiny/Tiny-1B"],
    "weights": {
        "version": "v1",
        "entry_file": "tiny.gguf",
        "files": [
            {
                "path": "tiny.gguf",
                "url": "file:///models/tiny.gguf",
                "sha256": "AB" * 32,
                "size_bytes": "1.5KiB",
            }
        ],
    },
    "profiles": [{"engine": "llamacpp", "gpu_class": "L4", "memory_bytes": "20GiB"}],
}
WIDE: dict[str, Any] = {
    "name": "qwen/qwen3-235b",
    "weights": {"version": "b2cff64", "files": [{"path": "a/b.safetensors", "url": "https://hub.internal/a/b"}]},
    "profiles": [
        {"name": "h100", "engine": "vllm", "gpu_class": "H100", "nodes": 2, "gpus_per_node": 8,
         "extra_ports": ["rendezvous"], "env": {"B": "2", "A": "1"}},
        {"name": "h200", "engine": "sglang", "gpu_class": "H200", "gpus_per_node": 8, "tensor_parallel": 4,
         "data_parallel": 2},
    ],
    "replicas": 1,
}  # fmt: skip


KEPT: dict[str, Any] = {
    "name": "kept",
    "profiles": [{"engine": "command", "gpu_class": "L4", "command": ["engine", "{port}"]}],
}


def model(written: Any) -> Any:
    return parse_model(written, source=Source.STORED, where="m.json")


def test_defaults_are_filled_in() -> None:
    parsed = model(PLAIN)
    assert (parsed.replicas, parsed.activate_on_demand, parsed.hold_timeout_s, parsed.max_held) == (
        0,
        True,
        120.0,
        100,
    )
    profile = parsed.profiles[0]
    assert (profile.name, profile.engine, profile.gpus, profile.tensor_parallel) == (
        "default",
        Engine.LLAMACPP,
        1,
        1,
    )
    assert (profile.ready_timeout_s, profile.drain_timeout_s, profile.stop_grace_s) == (600.0, 300.0, 20.0)
    assert profile.memory_bytes == 20 * 2**30
    assert parsed.weights.files[0].size_bytes == 1536
    assert parsed.weights.files[0].sha256 == "ab" * 32


def test_parallelism_follows_the_devices_unless_given() -> None:
    h100, h200 = model(WIDE).profiles
    assert (h100.tensor_parallel, h100.pipeline_parallel, h100.data_parallel) == (8, 2, 1)
    assert (h200.tensor_parallel, h200.pipeline_parallel, h200.data_parallel) == (4, 1, 2)


BOUNDED = PLAIN | {"max_held": 10, "max_held_per_tenant": 3}


@pytest.mark.parametrize("written", [PLAIN, WIDE, BOUNDED], ids=["plain", "wide", "bounded"])
def test_canonical_json_means_the_same_and_is_stable(written: Any) -> None:
    parsed = model(written)
    text = canonical_json(parsed)
    again = parse_model_json(text, source=Source.STORED, where="store")
    assert again == parsed
    assert canonical_json(again) == text
    for profile in parsed.profiles:
        assert spec_hash(parsed, profile) == spec_hash(again, profile)


def changed(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """`base` with one key set (or, with the value `...`, dropped)."""
    made = copy.deepcopy(base)
    at: Any = made
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in way:
        at = at[part]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return made


@pytest.mark.parametrize(
    ("base", "path", "value", "told"),
    [
        (WIDE, "profiles.0.args", ["a", "--x\0"], "profiles[0].args[1]: '--x\\x00' holds a NUL"),
        (WIDE, "profiles.0.env", {"A": "\0"}, "holds a NUL"),
        (WIDE, "profiles.0.node_ids", ["n1\0"], "holds a NUL"),
        (WIDE, "profiles.0.gpu_class", "H100\0", "holds a NUL"),
        (WIDE, "profiles.0.ready_path", "/a\0", "holds a NUL"),
        (WIDE, "weights.files.0.url", "https://hub/a\0", "holds a NUL"),
        (KEPT, "profiles.0.command", ["engine", "\0"], "holds a NUL"),
        (PLAIN, "replica", 2, "unknown key 'replica' (did you mean 'replicas'?)"),
        (PLAIN, "profiles.0.gpu_clas", "L4", "'profiles[0].gpu_clas' (did you mean 'gpu_class'?)"),
        (PLAIN, "weights.files.0.sha", "x", "unknown key 'weights.files[0].sha'"),
        (WIDE, "profiles.0.gpu_class", "H100\x1b[1m", "is no GPU class; expected 1 to 64 printable"),
        (WIDE, "profiles.0.gpu_class", " H100", "with no blank at either end"),
        (WIDE, "weights.files.0.url", "https://hub/a\n", "without blanks and control characters"),
        (WIDE, "weights.files.0.url", "http://[::1", "'http://[::1' is not a URL: Invalid IPv6 URL"),
        (WIDE, "weights.files.0.url", "http://h:99999999/x", "is not a URL: Port out of range"),
        (WIDE, "weights.files.0.path", "a" * 256, "expected at most 1024 bytes, and 255 between two /"),
        (WIDE, "weights.files.0.path", "a/" * 600 + "b", "is too long a path"),
        (WIDE, "profiles.0.args", ["\ud800"], "'\\ud800' holds half a character"),
        (WIDE, "profiles.0.args", ["a" * 5_000_000], "is 5000000 bytes long; expected at most 130048"),
        (WIDE, "profiles.0.args", ["é" * 60_000] * 20, "bytes as it is stored; expected at most 1048576"),
        (WIDE, "profiles.0.ready_timeout_s", "1e+300", "(366 days), got '1e+300', which is a text"),
        (WIDE, "profiles.0.pool", "a b", "'a b' is not a name; expected 1 to 64 of a-z A-Z 0-9 . _ -, with"),
        (PLAIN, "profiles.0.memory_bytes", "9" * 400 + "GiB", "is not a size"),
        (PLAIN, "name", "x\n\x1b[31m", "m.json ('x\\n\\x1b[31m'): name: 'x\\n\\x1b[31m' is not a model name"),
        (PLAIN, "name", ..., "name is missing"),
        (PLAIN, "name", "Tiny", "'Tiny' is not a model name"),
        (PLAIN, "name", "a//b", "'a//b' is not a model name"),
        (PLAIN, "name", "../b", "'../b' is not a model name"),
        (PLAIN, "profiles", [], "profiles: "),
        (PLAIN, "profiles.0.gpus_per_node", 0, "[0].gpus_per_node: expected a whole number from 1 to 4,096,"),
        (PLAIN, "profiles.0.gpus_per_node", "2", "to 4,096, got '2', which is a text"),
        (PLAIN, "profiles.0.tensor_parallel", 2, "= 2, but nodes 1 x gpus_per_node 1 = 1 GPUs"),
        (WIDE, "profiles.1.nodes", 2, "= 8, but nodes 2 x gpus_per_node 8 = 16 GPUs"),
        (PLAIN, "profiles.0.memory_bytes", "24 gigs", "'24 gigs' is not a size"),
        (PLAIN, "profiles.0.engine", "llama", "profiles[0].engine: expected 'llamacpp', 'vllm'"),
        (PLAIN, "profiles", [], "profiles: expected at least 1, got none"),
        (PLAIN, "aliases", "x", "aliases: expected a list, got 'x'"),
        (PLAIN, "profiles.0.args", [1], "profiles[0].args[0]: expected a text, got 1"),
        (PLAIN, "pinned", "perhaps", "pinned: expected true or false, got 'perhaps'"),
        (PLAIN, "profiles.0", 7, "profiles[0]: expected names with values, got 7"),
        (PLAIN, "profiles.0.engine", "command", 'engine "command" needs command'),
        (PLAIN, "profiles.0.command", ["x"], 'command belongs to engine "command"'),
        (PLAIN, "profiles.0.extra_ports", ["http"], "extra_ports are distinct names"),
        (PLAIN, "profiles.0.env", {"1X": "1"}, "'1X' is no name of an environment variable"),
        (PLAIN, "weights", ..., "engine llamacpp needs weights"),
        (PLAIN, "weights.entry_file", ..., "weights.entry_file must name it"),
        (PLAIN, "weights.entry_file", "other.gguf", "'other.gguf' is none of its files: tiny.gguf"),
        (PLAIN, "weights.files.0.path", "../../etc/passwd", "is not a path inside the version"),
        (PLAIN, "weights.files.0.url", "ftp://x/y", "is not a weights URL"),
        (PLAIN, "weights.files.0.url", "file://host/y", "expected file:///ABSOLUTE/PATH"),
        (PLAIN, "weights.files.0.sha256", "abc", "is not a SHA-256"),
        (PLAIN, "weights.files", [], "weights.files: expected at least 1, got none"),
        (PLAIN, "hold_timeout_s", -1, "hold_timeout_s: "),
        (PLAIN, "aliases", ["a", "a"], "aliases repeat"),
        (PLAIN, "activate_on_demand", False, "nothing would ever start it"),
        (WIDE, "profiles.1.name", "h100", "two profiles are named 'h100'"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place(base: Any, path: str, value: Any, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        model(changed(base, path, value))
    assert told in caught.value.text
    assert caught.value.text.startswith("m.json")


def test_a_list_is_checked_as_a_whole() -> None:
    with pytest.raises(InvalidRequest, match=r"'tiny' belongs to two models, 'tiny' and 'other'"):
        parse_models([PLAIN, changed(changed(PLAIN, "name", "other"), "aliases", ["tiny"])], where="c.yaml")
    with pytest.raises(InvalidRequest, match=r"c\.yaml: models\[1\] \(other\): unknown key"):
        parse_models([PLAIN, {**PLAIN, "name": "other", "colour": "red"}], where="c.yaml")
    with pytest.raises(InvalidRequest, match="models is a dict; expected a list"):
        parse_models({}, where="c.yaml")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON"),
        ("[]", "is a list; expected a mapping"),
        ('{"name": "a", "name": "b"}', "key 'name' stands twice"),
    ],
)
def test_bad_json_is_told(text: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        parse_model_json(text, source=Source.STORED, where="m.json")


def test_json_text_is_accepted() -> None:
    assert parse_model_json(json.dumps(PLAIN), source=Source.STORED, where="m.json") == model(PLAIN)


NUMBERS = [
    *((key, key) for key in ModelWritten.model_fields),
    *((f"profiles.0.{key}", key) for key in ProfileWritten.model_fields),
    *((f"weights.files.0.{key}", key) for key in FileWritten.model_fields),
]


@pytest.mark.parametrize(
    "huge", [2**31, 10**12, 2**64, 10**25, 1e18, 1e300, -(10**12), float("inf"), float("nan")]
)
def test_no_number_is_taken_that_no_message_and_no_column_carries(huge: float) -> None:
    for path, key in NUMBERS:
        if key in ("memory_bytes", "size_bytes") and huge in (2**31, 10**12):
            continue  # sizes that there are
        with pytest.raises(InvalidRequest) as caught:
            model(changed(PLAIN, path, huge))
        assert len(caught.value.text) < 1000


def test_a_text_that_is_nested_without_end_is_told() -> None:
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        parse_model_json("[" * 1_000_000, source=Source.STORED, where="m.json")


def test_two_models_of_one_name_are_told_as_such() -> None:
    with pytest.raises(InvalidRequest, match=r"two models are named 'tiny'"):
        parse_models([PLAIN, PLAIN], where="c.yaml")
