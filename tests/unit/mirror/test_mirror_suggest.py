"""A proposed catalog entry: what is read, what is guessed, and that the figures follow from the sizes."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from llmgw_mirror.core.described import Described, from_config
from llmgw_mirror.core.fitting import USABLE, fit
from llmgw_mirror.core.suggest import catalog_name, catalog_version, chosen_weights, suggest
from llmgw_mirror.core.suggest_yaml import quoted, written
from llmgw_mirror.core.versions import FileView, Proof, Repository, Source, VersionView, WeightsState
from llmgw_mirror.core.warnings import GpuClass

GB = 10**9
H100, L4 = GpuClass("H100", 80 * 2**30, 8, 4), GpuClass("L4", 24 * 2**30, 4, 1)
SHA = "ab" * 32

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 40960, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}  # fmt: skip
#: 671 B parameters in fp8, latent attention.
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "max_position_embeddings": 163840, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "hidden_size": 7168, "quantization_config": {"quant_method": "fp8"}, "auto_map": {"AutoModel": "x.Y"},
}  # fmt: skip


def described(config: dict, tokenizer: dict | None = None) -> Described:
    return from_config(config, tokenizer=tokenizer, template_file=False, read_from=("config.json",))


def held(path: str, size: int, *, published: bool = True, url: str | None = None) -> FileView:
    source = Source(path, url or f"https://hub.test/r/resolve/c/{path}", SHA if published else None, size)
    return FileView(source, WeightsState.PRESENT, size, size, sha256=SHA, proof=Proof.SHA256)


def version(*files: FileView, model: str = "qwen3-8b", name: str = "v1", repository: str | None = None):
    where = None if repository is None else Repository(repository, "c" * 40, "main")
    return VersionView(model, name, 0.0, files, where)


def proposed(view: VersionView, model: Described, fleet=(H100, L4)) -> tuple[dict, str]:
    chosen = chosen_weights(view)
    assert chosen is not None
    entry, notes = suggest(view, chosen, model, fleet)
    return yaml.safe_load(written(entry)), "\n".join(notes)


SAFETENSORS = [held(f"model-0000{n}-of-00002.safetensors", 8 * GB) for n in (1, 2)]
CONFIG = held("config.json", 700)


def test_a_model_that_fits_one_device_takes_one_and_the_context_that_is_left():
    entry, notes = proposed(version(*SAFETENSORS, CONFIG), described(QWEN3_8B))
    one, other, last = entry["profiles"]
    assert (one["gpu_class"], one["engine"], one["context_length"]) == ("H100", "vllm", 40960)
    assert "gpus_per_node" not in one
    assert other["gpu_class"] == "L4"
    assert 8192 <= other["context_length"] < 40960
    assert (last["engine"], last["name"]) == ("sglang", "h100-sglang")
    assert "read in config.json: Qwen3ForCausalLM, context 40960, in bfloat16" in notes


def test_one_that_fits_no_device_takes_as_many_as_its_heads_share_out():
    files = [held(f"model-{n:05}-of-00015.safetensors", 9_400_000_000) for n in range(1, 16)]
    entry, notes = proposed(version(*files, CONFIG), described(QWEN3_8B | {"num_attention_heads": 64}))
    # 141 GB in two halves leave room for 8k tokens in 0.9 of 80 GiB; 64 heads are shared out by two.
    assert [(one["name"], one["gpus_per_node"]) for one in entry["profiles"]] == [
        ("h100x2", 2), ("h100x2-sglang", 2),
    ]  # fmt: skip
    assert "does not fit L4" in notes


def test_one_larger_than_a_node_takes_whole_nodes_of_one_fabric():
    files = [held(f"model-{n:05}-of-00163.safetensors", 4_220_000_000) for n in range(1, 164)]
    entry, notes = proposed(version(*files, CONFIG), described(DEEPSEEK), fleet=[H100])
    first = entry["profiles"][0]
    assert (first["nodes"], first["gpus_per_node"]) == (2, 8)
    assert "quantised as fp8" in notes
    assert '"--trust-remote-code"' in notes


def test_one_that_fits_nothing_says_so_and_still_is_an_entry():
    files = [held("model.safetensors", 9_000 * GB)]
    entry, notes = proposed(version(*files), described(QWEN3_8B), fleet=[L4])
    assert "fits no class of this fleet; L4 stands here" in notes
    assert entry["profiles"][0]["gpu_class"] == "L4"


def test_without_a_fleet_the_class_is_said_to_be_a_guess():
    _, notes = proposed(version(*SAFETENSORS, CONFIG), described(QWEN3_8B), fleet=[])
    assert "no fleet was given: H100 is a guess" in notes


def test_nothing_known_but_the_size_is_said():
    _, notes = proposed(version(*SAFETENSORS), Described())
    assert "no file says what the model is" in notes


def test_a_split_gguf_is_opened_by_its_first_and_the_projector_is_no_model():
    files = [
        held("big-q8_0-00002-of-00002.gguf", GB), held("big-q8_0-00001-of-00002.gguf", GB),
        held("mmproj-f16.gguf", GB), held("README.md", 10),
    ]  # fmt: skip
    view = version(*files)
    chosen = chosen_weights(view)
    assert chosen is not None
    assert (chosen.engine, chosen.entry, chosen.size_bytes) == (
        "llamacpp",
        "big-q8_0-00001-of-00002.gguf",
        2 * GB,
    )
    entry, _ = proposed(view, Described())
    assert entry["weights"]["entry_file"] == "big-q8_0-00001-of-00002.gguf"
    assert {one["engine"] for one in entry["profiles"]} == {"llamacpp"}


def test_h21_of_pickles_and_safetensors_one_is_counted():
    view = version(held("pytorch_model.bin", 17 * GB), *SAFETENSORS, CONFIG)
    chosen = chosen_weights(view)
    assert chosen is not None
    assert chosen.size_bytes == 16 * GB
    assert chosen.paths == tuple(file.source.path for file in SAFETENSORS)


def test_weights_that_no_engine_of_ours_loads_are_none():
    assert chosen_weights(version(held("model.onnx", GB))) is None


def test_under_its_own_name_files_are_what_was_asked_for_else_what_was_verified():
    """The mirror takes another checksum for other files; without one it would fetch instead of finding it."""
    files = (held("model.safetensors", GB), held("config.json", 700, published=False))
    same, _ = proposed(version(*files), described(QWEN3_8B))
    assert [file.get("sha256") for file in same["weights"]["files"]] == [SHA, None]
    other, notes = proposed(version(*files, model="Qwen/Qwen3-8B"), described(QWEN3_8B))
    assert [file["sha256"] for file in other["weights"]["files"]] == [SHA, SHA]
    assert (other["name"], other["aliases"]) == ("qwen/qwen3-8b", ["Qwen/Qwen3-8B"])
    assert "nothing is fetched again" in notes


def test_a_query_in_a_url_is_no_part_of_a_proposal():
    entry, notes = proposed(
        version(held("model.safetensors", GB, url="https://s3.test/m?X-Sig=secret")), Described()
    )
    assert "secret" not in json.dumps(entry) + notes
    assert entry["weights"]["files"][0]["url"] == "https://s3.test/m"
    assert "may be a credential" in notes


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "no context length is told"),
        (QWEN3_8B | {"architectures": ["BertModel"]}, "BertModel may be no model that writes text"),
        (QWEN3_8B | {"sliding_window": 4096}, "over a window only"),
        ({"max_position_embeddings": True, "num_hidden_layers": "36"}, "what its cache costs is not told"),
        ({"architectures": [7], "torch_dtype": {}, "quantization_config": []}, "no architecture"),
    ],
)
def test_what_is_odd_in_a_config_is_told_and_breaks_nothing(config, said):
    _, notes = proposed(version(*SAFETENSORS, CONFIG), described(config))
    assert said in notes


def test_true_is_no_number_and_a_text_is_none():
    model = described({"max_position_embeddings": True, "n_positions": "4096", "n_head": 2.5})
    assert (model.context_length, model.cache) == (None, None)


def test_heads_that_two_gpus_cannot_share_are_not_given_two():
    """14 heads go to 1, 2 or 7 GPUs; 25 to one alone, so that nothing but one device is left to try."""
    odd = described(QWEN3_8B | {"num_attention_heads": 25})
    assert fit(100 * GB, odd, H100, engine="vllm") is None
    even = described(QWEN3_8B | {"num_attention_heads": 14})
    found = fit(100 * GB, even, H100, engine="vllm")
    assert found is not None
    assert found.gpus == 2


def test_a_latent_cache_lies_whole_on_each_gpu_of_a_node():
    """DeepSeek's: tensor parallelism shares its heads out, and copies what they look at."""
    model = described(DEEPSEEK)
    assert model.cache is not None
    assert (model.cache.bytes_per_token, model.cache.splits) == (61 * 576 * 2, 1)
    found = fit(400 * GB, model, H100, engine="vllm")
    assert found is not None
    assert (found.nodes, found.gpus_per_node, found.context_length) == (1, 8, 163840)
    weights = int(400 * GB * 1.03 / 8) + 2 * GB
    assert found.claim_bytes == pytest.approx(weights + 61 * 576 * 2 * 163840, abs=2)


def test_the_language_part_of_a_model_that_sees_is_read():
    model = described({"architectures": ["XForConditionalGeneration"], "text_config": QWEN3_8B})
    assert (model.context_length, model.architecture) == (40960, "XForConditionalGeneration")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-8B", "qwen/qwen3-8b"),
        ("a b", "a-b"),
        ("x", "x"),
        ("日本", "model"),
        ("A" * 300, "a" * 128),
    ],
)
def test_names_are_made_what_the_catalog_takes(model, name):
    assert catalog_name(model) == name


@given(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
def test_no_name_breaks_the_yaml(model: str, version_name: str) -> None:
    assert yaml.safe_load(quoted(model)) == model or "\ud800" <= max(model) <= "\udfff"
    assert catalog_version(version_name)
    assert catalog_name(model)


@given(
    weights=st.integers(1, 2_000 * GB),
    memory=st.integers(8 * GB, 200 * GB),
    devices=st.integers(1, 16),
    nodes=st.integers(1, 8),
    engine=st.sampled_from(sorted(USABLE)),
)
def test_what_is_proposed_fits_what_it_is_proposed_for(weights, memory, devices, nodes, engine):
    one = GpuClass("x", memory, devices, nodes)
    found = fit(weights, described(QWEN3_8B), one, engine=engine)
    if found is None:
        return
    assert found.claim_bytes <= memory * USABLE[engine]
    assert found.gpus_per_node <= devices
    assert found.nodes <= nodes
    assert found.context_length is not None
    assert 8192 <= found.context_length <= 40960
