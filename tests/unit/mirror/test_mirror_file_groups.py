"""Weight files as choices: what is listed, what belongs together, and which is the one to take."""

import pytest

from llmgw_mirror.core.file_groups import FileGroup, companions, grouped
from llmgw_mirror.core.listed_files import ListedFile
from llmgw_mirror.core.weight_files import format_of, is_companion, is_index, read_name


def listed(*paths: str, size: int = 1000) -> list[ListedFile]:
    return [ListedFile(path, size, "ab" * 32) for path in paths]


def groups(*paths: str) -> dict[str, FileGroup]:
    return {group.name: group for group in grouped(listed(*paths))}


def chosen(*paths: str) -> str | None:
    return next((name for name, group in groups(*paths).items() if group.preselected), None)


def split(stem: str, of: int, suffix: str, *, without: tuple[int, ...] = ()) -> list[str]:
    return [f"{stem}-{n:05}-of-{of:05}.{suffix}" for n in range(1, of + 1) if n not in without]


SMALL = ("config.json", "tokenizer.json", "README.md", "generation_config.json")


@pytest.mark.parametrize(
    ("path", "format", "stem", "kind", "part", "of"),
    [
        ("model.safetensors", "safetensors", "model", None, None, None),
        ("model-00003-of-00015.safetensors", "safetensors", "model", None, 3, 15),
        ("unet/x_model.fp16.safetensors", "safetensors", "x_model", "fp16", None, None),
        ("model.fp16-00001-of-00002.safetensors", "safetensors", "model", "fp16", 1, 2),
        ("pytorch_model-00001-of-00002.bin", "pytorch", "pytorch_model", None, 1, 2),
        ("consolidated.03.pth", "pytorch", "consolidated", None, 3, None),
        ("Llama-3-8B-Instruct.Q4_K_M.gguf", "gguf", "Llama-3-8B-Instruct", "Q4_K_M", None, None),
        ("q8_0/m-q8_0-00001-of-00004.gguf", "gguf", "m", "Q8_0", 1, 4),
        ("m-UD-Q4_K_XL.gguf", "gguf", "m", "UD-Q4_K_XL", None, None),
        ("m-IQ2_XXS.gguf", "gguf", "m", "IQ2_XXS", None, None),
        ("m.mxfp4.gguf", "gguf", "m", "MXFP4", None, None),
        ("BF16/m-00001-of-00002.gguf", "gguf", "m", "BF16", 1, 2),
        ("tiny.gguf", "gguf", "tiny", None, None, None),
        ("onnx/model_q4f16.onnx", "onnx", "model", "q4f16", None, None),
        ("onnx/model.onnx_data", "onnx", "model", None, None, None),
        ("weights.00.safetensors", "mlx", "weights", None, 0, None),
        ("output-00001-of-00002.safetensors", "exl2", "output", None, 1, 2),
        ("ggml-base.en.bin", "ggml", "ggml-base.en", None, None, None),
        ("openvino_model.bin", "openvino", "openvino_model", None, None, None),
        ("v1-5-pruned-emaonly.ckpt", "ckpt", "v1-5-pruned-emaonly", None, None, None),
    ],
)  # fmt: skip
def test_what_a_name_says(
    path: str, format: str, stem: str, kind: str | None, part: int | None, of: int | None
) -> None:
    name = read_name(path)
    assert name is not None
    assert (name.format.name, name.stem, name.quantisation, name.part, name.of) == (
        format,
        stem,
        kind,
        part,
        of,
    )


@pytest.mark.parametrize(
    "path",
    [
        "config.json", "tokenizer.model", "training_args.bin", "checkpoint-9/optimizer.pt", "scheduler.pt",
        "rng_state_0.pth", "README.md", "modeling_x.py", "m.imatrix", "imatrix_unsloth.dat", "merges.txt",
        "model.safetensors.index.json", "zero_pp_rank_0_mp_rank_00_optim_states.pt", "chat_template.jinja",
    ],
)  # fmt: skip
def test_m19_what_is_no_weight_file(path: str) -> None:
    assert format_of(path) is None


def test_h20_a_split_is_one_choice() -> None:
    found = groups(*split("m-Q4_K_M", 4, "gguf"), "m-Q8_0.gguf")
    assert len(found["gguf-q4_k_m"].files) == 4
    assert found["gguf-q4_k_m"].whole
    assert chosen(*split("m-Q4_K_M", 4, "gguf"), "m-Q8_0.gguf") == "gguf-q4_k_m"


def test_h20_a_gap_is_seen_and_another_choice_preferred() -> None:
    paths = [*split("m-Q4_K_M", 4, "gguf", without=(2,)), "m-Q8_0.gguf"]
    found = groups(*paths)["gguf-q4_k_m"]
    assert found.splits[0].gaps == (2,)
    assert not found.whole
    assert chosen(*paths) == "gguf-q8_0"


def test_h20_one_shard_alone_is_a_gap() -> None:
    assert groups("m-Q4_K_M-00001-of-00004.gguf")["gguf-q4_k_m"].splits[0].gaps == (2, 3, 4)


def test_shards_counted_from_zero() -> None:
    found = groups("m-00000-of-00002.safetensors", "m-00001-of-00002.safetensors")["safetensors"]
    assert (found.splits[0].gaps, found.splits[0].beyond) == ((), ())


def test_a_number_past_the_total_cannot_be() -> None:
    found = groups("m-00001-of-00002.bin", "m-00002-of-00002.bin", "m-00005-of-00002.bin")["pytorch"]
    assert found.splits[0].beyond == (5,)


def test_h21_the_same_weights_twice_are_two_choices_and_safetensors_is_taken() -> None:
    paths = (*SMALL, "pytorch_model.bin", "model.safetensors", "tf_model.h5", "flax_model.msgpack")
    found = groups(*paths)
    assert {"safetensors", "pytorch", "tensorflow", "flax"} == set(found)
    assert chosen(*paths) == "safetensors"


def test_h21_broken_safetensors_are_not_preferred_to_a_whole_twin() -> None:
    paths = [*split("model", 3, "safetensors", without=(3,)), "pytorch_model.bin"]
    assert chosen(*paths) == "pytorch"


def test_two_splits_of_one_name_are_two_choices() -> None:
    """As H19's repository, where 15 shards were uploaded over 30."""
    found = groups(*split("model", 15, "safetensors"), *split("model", 30, "safetensors", without=(7,)))
    assert sorted(len(group.files) for group in found.values()) == [15, 29]
    assert found["safetensors"].whole


def test_the_publishers_own_layout_beside_the_usual_one() -> None:
    found = groups(
        "consolidated.safetensors", *split("model", 2, "safetensors"), "model.safetensors.index.json"
    )
    assert set(found) == {"safetensors", "safetensors-consolidated"}
    assert found["safetensors"].preselected


def test_shards_with_an_index_go_before_a_single_file_that_it_would_hide() -> None:
    paths = ["model.safetensors", *split("model", 2, "safetensors"), "model.safetensors.index.json"]
    assert len(groups(*paths)["safetensors"].files) == 2
    assert len(groups(*paths[:-1])["safetensors"].files) == 1


def test_a_pipelines_folders_are_one_choice_and_a_variant_takes_what_it_lacks() -> None:
    found = groups(
        "model_index.json", "unet/diffusion_pytorch_model.safetensors",
        "vae/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors",
        "unet/diffusion_pytorch_model.fp16.safetensors", "sd_xl_base.safetensors",
        "unet/diffusion_pytorch_model.bin",
    )  # fmt: skip
    assert len(found["safetensors"].files) == 3
    assert found["safetensors"].preselected
    assert found["safetensors-fp16"].paths == {
        "unet/diffusion_pytorch_model.fp16.safetensors", "vae/diffusion_pytorch_model.safetensors",
        "text_encoder/model.safetensors",
    }  # fmt: skip
    assert found["safetensors-sd_xl_base"].paths == {"sd_xl_base.safetensors"}


def test_modules_of_a_sentence_model_belong_to_it() -> None:
    found = groups(
        "model.safetensors", "2_Dense/model.safetensors", "pytorch_model.bin", "2_Dense/pytorch_model.bin"
    )
    assert found["safetensors"].paths == {"model.safetensors", "2_Dense/model.safetensors"}
    assert found["pytorch"].paths == {"pytorch_model.bin", "2_Dense/pytorch_model.bin"}


def test_onnx_files_of_one_precision_are_used_together() -> None:
    found = groups(
        "onnx/encoder_model.onnx", "onnx/decoder_model.onnx", "onnx/decoder_model.onnx_data",
        "onnx/encoder_model_fp16.onnx", "onnx/decoder_model_fp16.onnx",
    )  # fmt: skip
    assert len(found["onnx"].files) == 3
    assert len(found["onnx-fp16"].files) == 2


def test_a_projector_is_offered_and_never_taken_by_itself() -> None:
    found = groups("m-F16.gguf", "mmproj-F16.gguf", "mmproj-BF16.gguf")
    assert set(found) == {"gguf-f16", "gguf-f16-mmproj", "gguf-bf16-mmproj"}
    assert found["gguf-f16"].preselected
    assert chosen("mmproj-F16.gguf") is None


def test_an_adapter_stands_back_for_the_model() -> None:
    assert chosen("adapter_model.safetensors", "pytorch_model.bin") == "pytorch"
    assert chosen("adapter_model.safetensors") == "safetensors"


@pytest.mark.parametrize(
    ("kinds", "best"),
    [
        (("Q2_K", "Q4_K_M", "Q8_0"), "q4_k_m"), (("F16", "Q8_0"), "q8_0"), (("Q2_K", "IQ1_S"), "q2_k"),
        (("UD-Q4_K_XL", "Q3_K_M"), "ud-q4_k_xl"), (("BF16",), "bf16"),
    ],
)  # fmt: skip
def test_the_quantisation_that_is_taken(kinds: tuple[str, ...], best: str) -> None:
    assert chosen(*(f"m-{kind}.gguf" for kind in kinds)) == f"gguf-{best}"


def test_names_are_unique_and_do_not_depend_on_the_order_of_rows() -> None:
    paths = [
        *split("model", 2, "safetensors"), *split("model", 3, "safetensors"), "a/model.safetensors",
        "b/model.safetensors", "x.gguf", "y.gguf", "z-Q8_0.gguf", "w-Q8_0.gguf",
        "consolidated.00.pth", "m.pt",
    ]  # fmt: skip
    forward, backward = grouped(listed(*paths)), grouped(listed(*reversed(paths)))
    assert forward == backward
    assert len({group.name for group in forward}) == len(forward)
    assert sum(group.preselected for group in forward) == 1
    assert sum(len(group.files) for group in forward) == len(paths)


def test_the_size_of_a_group_is_unknown_with_one_of_its_files() -> None:
    files = [*listed("model-00001-of-00002.safetensors"), ListedFile("model-00002-of-00002.safetensors")]
    assert grouped(files)[0].total_bytes is None
    assert grouped(listed(*split("model", 2, "safetensors")))[0].total_bytes == 2000


@pytest.mark.parametrize(
    ("path", "size", "along"),
    [
        ("config.json", 900, True), ("tokenizer.json", 35_000_000, True), ("chat_template.jinja", 5000, True),
        ("model.safetensors.index.json", 9_000_000, True), ("1_Pooling/config.json", 190, True),
        ("LICENSE", 10_000, True), ("vocab.bin.txt", 60_000_000, False), ("config.json", None, False),
        ("modeling_x.py", 9000, False), ("run.sh", 10, False), ("demo.png", 10, False),
        (".gitattributes", 10, False), ("optimizer.pt", 10, False), ("model.safetensors", 10, False),
        ("runs/x/events.out.tfevents.1", 9, False),
    ],
)  # fmt: skip
def test_what_comes_along(path: str, size: int | None, along: bool) -> None:
    assert is_companion(path, size) is along
    assert bool(companions([ListedFile(path, size)])) is along


def test_what_is_an_index() -> None:
    assert is_index("a/model.safetensors.index.json")
    assert is_index("model.safetensors.index.fp16.json")
    assert not is_index("model_index.json")
    assert not is_index("config.json")


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (  # an embedding model with further heads and an export
            ["pytorch_model.bin", "colbert_linear.pt", "onnx/model.onnx", "onnx/model.onnx_data", "a.jpg"],
            ["pytorch 1", "pytorch-colbert_linear 1", "onnx 2"],
        ),
        (  # the publisher's first layout in a folder, and one for another machine
            [
                *split("model", 3, "safetensors"),
                *split("original/model-", 7, "safetensors"),
                "metal/model.bin",
            ],
            ["safetensors 3", "safetensors-original-model 7", "pytorch 1"],
        ),
        (  # two precisions of two formats
            [
                "model.safetensors",
                *split("model.fp32", 2, "safetensors"),
                *split("pytorch_model.fp32", 2, "bin"),
            ],
            ["safetensors 1", "safetensors-fp32 2", "pytorch-fp32 2"],
        ),
        (  # a folder a quantisation, named after repository and type
            [
                *split("M-UD-IQ1_S/M-UD-IQ1_S", 3, "gguf"),
                *split("M-Q4_K_M/M-Q4_K_M", 9, "gguf"),
                "M-Q8_0.gguf",
            ],
            ["gguf-q4_k_m 9", "gguf-q8_0 1", "gguf-ud-iq1_s 3"],
        ),
        (  # a pipeline with shards in some of its folders, beside single-file forms
            [
                "model_index.json",
                "flux.safetensors",
                "ae.safetensors",
                "vae/diffusion_pytorch_model.safetensors",
                *split("transformer/diffusion_pytorch_model", 2, "safetensors"),
                *split("te/model", 2, "safetensors"),
            ],
            ["safetensors 5", "safetensors-ae 1", "safetensors-flux 1"],
        ),
        (  # a checkpoint that was left in
            [
                "model.safetensors",
                "checkpoint-9/model.safetensors",
                "checkpoint-9/optimizer.pt",
                "training_args.bin",
            ],
            ["safetensors 1", "safetensors-checkpoint-9-model 1"],
        ),
    ],
)
def test_repositories_as_packagers_lay_them_out(paths: list[str], names: list[str]) -> None:
    found = grouped(listed(*paths))
    assert [f"{group.name} {len(group.files)}" for group in found] == names
    assert found[0].preselected
    assert all(group.whole for group in found)
