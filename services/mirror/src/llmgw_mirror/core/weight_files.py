"""Which files of a repository hold weights, and what their names say: one table, easy to extend.

A file's kind is that of the first line of FORMATS that its path matches, so special names stand before
the suffix they share. What matches none is no weight file: it may come along (see companions), or stay out.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

#: Paths are looked at from several sides; so many are matched against the table once.
FILES_REMEMBERED = 20_000
#: Small files of a repository are taken along up to this size; a large vocabulary has some 35 MB.
COMPANION_MAX_BYTES = 50 * 1000 * 1000


@dataclass(frozen=True)
class Format:
    """`pattern` is matched against the path in lower case. `rank`: of preselection, the least comes first;
    None is never chosen by itself. `pickled`: loading it may run code that it holds."""

    name: str
    pattern: str
    rank: int | None
    pickled: bool = False


#: What trainers leave behind beside the weights, often larger than these: neither weights nor company.
LEFTOVERS = re.compile(
    r"(?:^|/)(?:optimizer|scheduler|scaler|rng_state|random_states|training_args|trainer_state|global_step)"
    r"[^/]*(?:\.(?:pt|pth|bin|pkl|json)$|/)"
    r"|(?:^|/)(?:zero_pp_rank|bf16_zero_pp_rank|mp_rank)[^/]*\.pt$"
    r"|(?:^|/)events\.out\.tfevents"
    r"|imatrix[^/]*\.(?:dat|gguf)$|\.imatrix$"
)

FORMATS: tuple[Format, ...] = (
    Format("openvino", r"(?:^|/)openvino_[^/]*\.(?:bin|xml)$", 8),
    Format("coreml", r"\.(?:mlpackage|mlmodelc)/|\.mlmodel$", 10),
    Format("ggml", r"(?:^|/)ggml-[^/]*\.bin$", 9),
    Format("exl2", r"(?:^|/)output(?:-\d{5}-of-\d{5})?\.safetensors$", 2),
    Format("mlx", r"(?:^|/)weights(?:\.\d{2,5})?\.(?:safetensors|npz)$", 3),
    Format("safetensors", r"\.safetensors$", 0),
    Format("gguf", r"\.gguf$", 1),
    # Pieces to be joined by hand, from before GGUF could be split.
    Format("gguf-pieces", r"\.gguf[-.](?:part|split)[-._]?\w{1,8}$", None),
    Format("pytorch", r"\.(?:bin|pt|pth|pkl)$", 4, pickled=True),
    Format("onnx", r"\.onnx(?:[._]data(?:_\d+)?)?$|\.onnx\.data$|/(?:weights|model)\.pb$", 5),
    Format("flax", r"\.msgpack$", 7),
    Format("ckpt", r"\.ckpt$", 6, pickled=True),
    Format("tensorflow", r"\.(?:h5|keras)$|(?:^|/)saved_model\.pb$"
           r"|(?:variables/variables|\.ckpt)\.(?:index|meta|data-\d+-of-\d+)$", 7),
    Format("tflite", r"\.(?:tflite|task|litertlm)$", 10),
    Format("npz", r"\.np[yz]$", 9),
    Format("nemo", r"\.nemo$", 9),
    Format("rust", r"\.ot$", 10),
    Format("executorch", r"\.pte$", 10),
    Format("tensorrt", r"\.(?:engine|plan)$", 10),
    Format("llamafile", r"\.llamafile$", 10),
)  # fmt: skip
_COMPILED = tuple((one, re.compile(one.pattern)) for one in FORMATS)

_SPLIT = re.compile(r"-(\d{1,6})-of-(\d{1,6})(?=[.]|$)", re.IGNORECASE)
#: consolidated.03.pth, weights.00.safetensors: numbered, with nobody saying how many.
_NUMBERED = re.compile(r"\.(\d{2,3})$")
#: As llama.cpp names its types, with the prefixes that packagers put before them.
_GGUF_TYPE = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_\d|_K(?:_(?:XXS|XS|S|M|L|XL))?|_(?:XXS|XS|S|M|L|XL|NL))(?:_\d{1,2}){0,3}"
    r"|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32|FP?8))(?=$|[-._/])",
    re.IGNORECASE,
)
_VARIANT = re.compile(
    r"[._-]((?:fp|bf|f)(?:16|32|8)(?:_e\dm\d(?:fn)?)?|u?int[48]|nf4|bnb4|[48]bit|q[48](?:f16)?|awq|gptq"
    r"|quantized|non_ema|ema)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class WeightName:
    """What a weight file's path says. `stem`: its name without shard, variant and suffix. `part` and `of`:
    its place among the shards of one choice, both from names only; `of` None: numbered, with no total."""

    path: str
    format: Format
    folder: str
    stem: str
    quantisation: str | None
    part: int | None = None
    of: int | None = None


@lru_cache(maxsize=FILES_REMEMBERED)
def format_of(path: str) -> Format | None:
    """None: no weight file."""
    lower = path.lower()
    if LEFTOVERS.search(lower):
        return None
    return next((one for one, pattern in _COMPILED if pattern.search(lower)), None)


def is_weight(path: str) -> bool:
    return format_of(path) is not None


@lru_cache(maxsize=FILES_REMEMBERED)
def read_name(path: str) -> WeightName | None:
    """None: no weight file."""
    kind = format_of(path)
    if kind is None:
        return None
    folder, _, name = path.rpartition("/")
    stem = _without_suffix(name, kind)
    part = of = None
    if (match := _SPLIT.search(stem)) is not None:
        part, of = int(match[1]), int(match[2])
        stem = stem[: match.start()] + stem[match.end() :]
    elif kind.name in ("pytorch", "mlx") and (match := _NUMBERED.search(stem)) is not None:
        part, stem = int(match[1]), stem[: match.start()]
    if kind.name == "gguf":
        return WeightName(path, kind, folder, *_gguf_type(folder, stem), part, of)
    quantisation = None
    if (match := _VARIANT.search(stem)) is not None:
        quantisation, stem = match[1], stem[: match.start()]
    return WeightName(path, kind, folder, stem, quantisation, part, of)


def _without_suffix(name: str, kind: Format) -> str:
    if kind.name == "onnx":
        return re.sub(r"\.onnx(?:[._]data(?:_\d+)?)?$|\.pb$", "", name, flags=re.IGNORECASE)
    return name.rpartition(".")[0]


def _gguf_type(folder: str, stem: str) -> tuple[str, str | None]:
    """Stem and type; the type stands last in the name, or is the folder's."""
    found = list(_GGUF_TYPE.finditer(stem))
    if found:
        last = found[-1]
        return stem[: last.start()] + stem[last.end() :], last[1].upper()
    inside = list(_GGUF_TYPE.finditer(folder.rpartition("/")[2]))
    return stem, inside[-1][1].upper() if inside else None


# What comes along.

_CODE = re.compile(r"\.(?:py|pyc|pyx|so|sh|ipynb|exe|dll|jar)$")
_MEDIA = re.compile(
    r"\.(?:png|jpe?g|gif|webp|svg|bmp|mp[34]|m4a|wav|flac|ogg|webm|mov|avi|pdf|zip|tar|gz|tgz|7z)$"
)


def is_code(path: str) -> bool:
    """What would run: taken along only when somebody asks for it."""
    return _CODE.search(path.lower()) is not None


def is_companion(path: str, size_bytes: int | None) -> bool:
    """Whether it comes along with any choice: what loaders read beside weights, which is about every small
    file. Pictures and archives are not read, code is asked for, and of unknown size anything may come."""
    lower = path.lower()
    if size_bytes is None or size_bytes > COMPANION_MAX_BYTES or lower.startswith((".git", "runs/")):
        return False
    return not (is_weight(path) or LEFTOVERS.search(lower) or _CODE.search(lower) or _MEDIA.search(lower))


def is_index(path: str) -> bool:
    """An index of shards: which tensor lies in which file."""
    return path.lower().endswith(".json") and ".index." in path.lower()
