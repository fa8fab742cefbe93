"""What a version's own files say of the model in it: config.json and tokenizer_config.json beside weights
for transformers, or the metadata that leads a GGUF file. Whatever is missing or of the wrong kind is unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: A tokenizer without a limit says something like 1e30.
_CONTEXT_MOST = 1 << 31

#: Of llama.cpp, `general.file_type`: the common ones; names as packagers write them.
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    32: "BF16", 38: "MXFP4_MOE",
}  # fmt: skip

#: Of a config: layers that look back over a window, or keep a state instead of a cache.
_NOT_ALL_ATTEND = ("sliding_window", "layer_types", "linear_attn_config")


@dataclass(frozen=True)
class Cache:
    """What a token costs in the KV cache. `bytes_per_token`: of all layers together, in 16 bits; `heads`: the
    attention's, which tensor parallelism shares out; `splits`: over so many devices at most it lies shared
    out, beyond that in copies."""

    bytes_per_token: int
    heads: int | None
    splits: int


@dataclass(frozen=True)
class Described:
    """None: nobody says. `read_from`: the files' paths, for the notes."""

    read_from: tuple[str, ...] = ()
    architecture: str | None = None
    context_length: int | None = None
    cache: Cache | None = None
    #: "fp8", "awq", "Q4_K_M"; None: as its numbers are stored.
    quantisation: str | None = None
    #: Of the stored numbers: "bfloat16".
    precision: str | None = None
    chat_template: bool | None = None
    #: config.json names code of the repository.
    own_code: bool = False
    #: Sliding windows or linear layers: the cache is smaller than reckoned here.
    cache_is_upper_bound: bool = False


def from_config(
    config: Mapping[str, Any], *, tokenizer: Mapping[str, Any] | None, template_file: bool,
    read_from: tuple[str, ...],
) -> Described:  # fmt: skip
    """Of weights for transformers. `template_file`: a chat template lies beside them in a file of its own."""
    # Models that see or hear keep what is said of the language part in a part of its own.
    nested = config.get("text_config") or config.get("llm_config") or config.get("language_config")
    text = {**config, **nested} if isinstance(nested, dict) else config
    quantised = config.get("quantization_config")
    method = quantised.get("quant_method") if isinstance(quantised, dict) else None
    template = template_file or (bool(tokenizer.get("chat_template")) if tokenizer is not None else None)
    return Described(
        read_from=read_from,
        architecture=_first_text(config.get("architectures")) or _text(config.get("model_type")),
        context_length=_count(text.get("max_position_embeddings")) or _count(text.get("n_positions"))
        or _count(text.get("seq_length")) or _count(text.get("max_seq_len")),
        cache=_cache_of_config(text),
        quantisation=_text(method),
        precision=_text(config.get("torch_dtype")) or _text(config.get("dtype")) or _text(text.get("dtype")),
        chat_template=template,
        own_code=bool(config.get("auto_map")),
        cache_is_upper_bound=any(text.get(key) for key in _NOT_ALL_ATTEND),
    )  # fmt: skip


def _cache_of_config(text: Mapping[str, Any]) -> Cache | None:
    layers = _count(text.get("num_hidden_layers")) or _count(text.get("n_layer"))
    heads = _count(text.get("num_attention_heads")) or _count(text.get("n_head"))
    if layers is None or heads is None:
        return None
    # Multi-head latent attention keeps one compressed vector a token and layer, not keys and values.
    latent, rope = _count(text.get("kv_lora_rank")), _count(text.get("qk_rope_head_dim"))
    if latent is not None and rope is not None:
        return Cache(layers * (latent + rope) * 2, heads, splits=1)
    hidden = _count(text.get("hidden_size")) or _count(text.get("n_embd"))
    width = _count(text.get("head_dim")) or (None if hidden is None else hidden // heads)
    if width is None:
        return None
    kept = _count(text.get("num_key_value_heads")) or heads
    return Cache(2 * layers * kept * width * 2, heads, splits=kept)


def from_gguf(pairs: Mapping[str, Any], *, path: str, whole: bool) -> Described:
    """Of a GGUF file's metadata. Where it was not `whole`, what is missing may yet be there."""
    kind = _text(pairs.get("general.architecture"))

    def of(key: str) -> int | None:
        return _count(pairs.get(f"{kind}.{key}"))

    layers, heads, width = of("block_count"), of("attention.head_count"), of("embedding_length")
    kept = of("attention.head_count_kv") or heads
    key_width = of("attention.key_length") or (width // heads if width and heads else None)
    value_width = of("attention.value_length") or key_width
    cache = None
    if layers and kept and key_width and value_width:
        cache = Cache(layers * kept * (key_width + value_width) * 2, heads, splits=kept)
    file_type = _count(pairs.get("general.file_type"))
    template = "tokenizer.chat_template" in pairs
    return Described(
        read_from=(path,),
        architecture=kind,
        context_length=of("context_length"),
        cache=cache,
        quantisation=_FILE_TYPES.get(file_type) if file_type is not None else None,
        chat_template=True if template else False if whole else None,
        cache_is_upper_bound=bool(of("attention.sliding_window")),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= 200 else None


def _first_text(value: Any) -> str | None:
    return _text(value[0]) if isinstance(value, list) and value else None


def _count(value: Any) -> int | None:
    """A whole number above 0; True is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 < value < _CONTEXT_MOST else None
