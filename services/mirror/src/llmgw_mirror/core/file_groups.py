"""Weight files as the choices they are: all shards of one format and quantisation are one (H20), the same
weights in two formats are two (H21), and one of them is the best to take."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from llmgw_mirror.core.listed_files import ListedFile
from llmgw_mirror.core.weight_files import WeightName, is_companion, is_index, read_name

#: Best first: small enough to fit, good enough to use, as packagers themselves recommend them.
GGUF_LIKED = (
    "Q4_K_M", "UD-Q4_K_XL", "MXFP4", "MXFP4_MOE", "Q4_K_S", "Q4_K_L", "Q5_K_M", "Q5_K_S", "IQ4_XS", "IQ4_NL",
    "Q6_K", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q3_K_M", "Q3_K_L", "Q3_K_S", "BF16", "F16", "FP16", "Q2_K",
    "F32",
)  # fmt: skip
#: Names that loaders look for by themselves; other stems need to be told to them.
USUAL_STEMS = (
    "",
    "model",
    "pytorch_model",
    "diffusion_pytorch_model",
    "tf_model",
    "flax_model",
    "adapter_model",
)
#: Formats whose files in the folders of one pipeline belong together (model_index.json names the folders).
_PIPELINE = frozenset({"safetensors", "pytorch", "flax"})
#: Modules of sentence-transformers, numbered: 1_Pooling, 2_Dense.
_MODULE = re.compile(r"\d+_\w+")


@dataclass(frozen=True)
class Split:
    """Shards that name their number: which are there, of how many. `of` None: nobody says how many."""

    folder: str
    stem: str
    parts: frozenset[int]
    of: int | None

    @property
    def gaps(self) -> tuple[int, ...]:
        """Numbers that must be there and are not; of what lies past a wrong total, nothing is known."""
        first = 0 if 0 in self.parts else 1
        last = max(self.parts) if self.of is None else self.of - 1 + first
        return tuple(n for n in range(first, last + 1) if n not in self.parts)

    @property
    def beyond(self) -> tuple[int, ...]:
        """Numbers that cannot be: past the total."""
        return tuple(sorted(n for n in self.parts if self.of is not None and n > self.of))


@dataclass(frozen=True)
class FileGroup:
    """One choice. `name`: stable within the listing; `family`: what tells it from others of its format and
    quantisation; `splits`: its numbered shards."""

    name: str
    format: str
    quantisation: str | None
    family: str
    files: tuple[ListedFile, ...]
    splits: tuple[Split, ...]
    rank: int | None
    pickled: bool
    #: Its names are those that loaders look for.
    usual: bool
    preselected: bool = False

    @property
    def total_bytes(self) -> int | None:
        """None while one file's size is unknown."""
        sizes = [file.size_bytes for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @cached_property
    def paths(self) -> frozenset[str]:
        return frozenset(file.path for file in self.files)

    @property
    def whole(self) -> bool:
        """By its own numbers."""
        return not any(split.gaps or split.beyond for split in self.splits)


@dataclass(frozen=True)
class _Key:
    format: str
    quantisation: str | None
    family: str
    of: int | None


def grouped(files: Sequence[ListedFile]) -> tuple[FileGroup, ...]:
    """The choices of a repository, best first; `preselected` is set on one at most."""
    paths = frozenset(file.path for file in files)
    pipeline = "model_index.json" in paths
    members: dict[_Key, list[tuple[WeightName, ListedFile]]] = {}
    for file in files:
        name = read_name(file.path)
        if name is not None:
            members.setdefault(_key(name, pipeline=pipeline), []).append((name, file))
    _fill_variants(members)
    _take_modules(members)
    indexed = frozenset(path.rpartition("/")[0] for path in paths if is_index(path))
    groups = sorted((_group(key, found) for key, found in members.items()), key=lambda g: _order(g, indexed))
    named = _named(groups)
    best = next((n for n, group in enumerate(named) if _eligible(group)), None)
    return tuple(replace(group, preselected=n == best) for n, group in enumerate(named))


def companions(files: Iterable[ListedFile]) -> tuple[ListedFile, ...]:
    """What comes along with any choice."""
    return tuple(file for file in files if is_companion(file.path, file.size_bytes))


def _key(name: WeightName, *, pipeline: bool) -> _Key:
    format, folder = name.format.name, name.folder
    if format == "onnx":
        # Encoder, decoder and outside data of one precision are used together.
        return _Key(format, name.quantisation, folder, None)
    if format == "coreml":
        return _Key(format, None, re.split(r"(?i)(?<=\.mlpackage|\.mlmodelc)/", name.path)[0], None)
    if pipeline and folder and "/" not in folder and format in _PIPELINE:
        return _Key(format, name.quantisation, "", None)
    if format == "gguf":
        # Folders named after the type hold what differs in nothing else.
        kept = [part for part in folder.split("/") if part.upper() != (name.quantisation or "")]
        folder = "/".join(part for part in kept if part)
    return _Key(format, name.quantisation, f"{folder}/{name.stem}".strip("/"), name.of)


def _fill_variants(members: dict[_Key, list[tuple[WeightName, ListedFile]]]) -> None:
    """A pipeline's variant takes the folders it lacks from the plain files, as its loader does."""
    for key, found in members.items():
        plain = members.get(_Key(key.format, None, "", None))
        if key.family == "" and key.quantisation is not None and plain is not None and key.of is None:
            folders = {name.folder for name, _ in found}
            found.extend((name, file) for name, file in plain if name.folder not in folders)


def _take_modules(members: dict[_Key, list[tuple[WeightName, ListedFile]]]) -> None:
    """2_Dense/model.safetensors is a part of the model beside it, not another one."""
    roots: dict[str, list[_Key]] = {}
    for key in members:
        if key.family in USUAL_STEMS and key.quantisation is None:
            roots.setdefault(key.format, []).append(key)
    for key in [key for key in members if _MODULE.fullmatch(key.family.split("/")[0])]:
        if key.format in roots:
            found = members.pop(key)
            for root in roots[key.format]:
                members[root] += found


def _group(key: _Key, found: Sequence[tuple[WeightName, ListedFile]]) -> FileGroup:
    splits: dict[tuple[str, str, int | None], set[int]] = {}
    for name, _ in found:
        if name.part is not None:
            splits.setdefault((name.folder, name.stem, name.of), set()).add(name.part)
    kind = found[0][0].format
    return FileGroup(
        name="",
        format=key.format,
        quantisation=key.quantisation,
        family=key.family,
        files=tuple(sorted({file for _, file in found}, key=lambda file: file.path)),
        splits=tuple(
            Split(folder, stem, frozenset(parts), of)
            for (folder, stem, of), parts in sorted(splits.items(), key=str)
        ),
        rank=kind.rank,
        pickled=kind.pickled,
        usual=key.family in USUAL_STEMS or key.format not in _PIPELINE,
    )


def _beside(group: FileGroup) -> bool:
    """Projectors and adapters add to a model; they are none."""
    last = group.family.rpartition("/")[2].lower()
    return "mmproj" in last or last.startswith("adapter") or "lora" in last


def _eligible(group: FileGroup) -> bool:
    return group.rank is not None and "mmproj" not in group.family.lower()


def _order(group: FileGroup, indexed: frozenset[str]) -> tuple[object, ...]:
    """Best first. An index in its folder speaks for shards against a single file of the same name, which
    would be left out by loaders that read the index."""
    liked = GGUF_LIKED if group.format == "gguf" else ("BF16", "FP16", "F16")
    kind = (group.quantisation or "").upper()
    taste = 0 if not kind else 1 + (liked.index(kind) if kind in liked else len(liked))
    sharded = bool(group.splits)
    folder = group.files[0].path.rpartition("/")[0]
    return (
        group.rank is None, not group.whole, _beside(group), group.rank or 0, taste, not group.usual,
        "/" in group.family, sharded != (folder in indexed), -(group.total_bytes or 0), group.family,
        str(group.splits),
    )  # fmt: skip


def _named(groups: Sequence[FileGroup]) -> list[FileGroup]:
    """The best of a format and quantisation has the plain name, others add what tells them apart."""
    taken: dict[str, int] = {}
    named = []
    for group in groups:
        words = [group.format, group.quantisation or ""]
        plain = _slug(words)
        name = plain if plain not in taken and not _mmproj(group) else _slug([*words, group.family])
        if name in taken:
            totals = [str(split.of) for split in group.splits if split.of is not None]
            name = _slug([name, "of", *totals[:1]]) if totals else name
        count = taken[name] = taken.get(name, 0) + 1
        named.append(replace(group, name=name if count == 1 else f"{name}-{count}"))
    return named


def _mmproj(group: FileGroup) -> bool:
    return "mmproj" in group.family.lower()


def _slug(words: Iterable[str]) -> str:
    return "-".join(re.sub(r"[^a-z0-9_.]+", "-", word.lower()).strip("-") for word in words if word)


def by_name(groups: Iterable[FileGroup]) -> Mapping[str, FileGroup]:
    return {group.name: group for group in groups}
