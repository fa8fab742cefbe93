"""A catalog entry that would serve a version: read from its files where they say it, guessed where they do
not, and in every case told which.

The entry keeps to docs/catalog.md. It names the very files that the mirror holds, so that applying it
fetches nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmgw_mirror.core.described import Described
from llmgw_mirror.core.fitting import Fit, at_most, fit
from llmgw_mirror.core.origins import shown
from llmgw_mirror.core.versions import FileView, VersionView
from llmgw_mirror.core.warnings import GpuClass, gb
from llmgw_mirror.core.weight_files import WeightName, read_name

#: Unless a fleet is given: a class that many have, to be changed by whoever has another.
GUESSED_CLASS = GpuClass("H100", 80 * 1024**3, 8, 1)
#: What loaders of weights for transformers take, best first.
_FOR_VLLM = ("safetensors", "pytorch")
#: An idle one may go after an hour; left out it would stay for good.
IDLE_AFTER_S = 3600

_MODEL_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._/-]{0,126}[a-z0-9])?")
_ALIAS = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/:-]{0,126}[A-Za-z0-9])?")
_WORD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")

#: Endings of architectures that write text; others are served otherwise, if at all.
_GENERATES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")


@dataclass(frozen=True)
class Profile:
    name: str
    engine: str
    fit: Fit


@dataclass(frozen=True)
class Entry:
    """As it is written down; `same_name`: the catalog knows it as the mirror does."""

    name: str
    aliases: tuple[str, ...]
    version: str
    files: tuple[FileView, ...]
    entry_file: str | None
    profiles: tuple[Profile, ...]
    same_name: bool


@dataclass(frozen=True)
class Chosen:
    """The files that an engine loads, of one format. `entry`: the one to open, for engines that open one."""

    engine: str
    paths: tuple[str, ...]
    size_bytes: int
    entry: str | None


def chosen_weights(view: VersionView) -> Chosen | None:
    """None: nothing in it is loaded by an engine that we know."""
    named = [(file, name) for file in view.files if (name := read_name(file.source.path)) is not None]
    for kind in _FOR_VLLM:
        if files := [file for file, name in named if name.format.name == kind]:
            return Chosen("vllm", _paths(files), _sum(files), None)
    # What projects pictures into a model is a GGUF as well, and no model.
    found = [(f, n) for f, n in named if n.format.name == "gguf" and "mmproj" not in f.source.path.lower()]
    if not found:
        return None
    file, name = min(found, key=lambda one: (one[1].part or 0, one[0].source.path))
    mine = [f for f, n in found if _together(n, name)]
    return Chosen("llamacpp", _paths(mine), _sum(mine), file.source.path)


def _together(one: WeightName, other: WeightName) -> bool:
    """Shards of one file."""
    return (one.folder, one.stem, one.quantisation) == (other.folder, other.stem, other.quantisation)


def _paths(files: Sequence[FileView]) -> tuple[str, ...]:
    return tuple(file.source.path for file in files)


def _sum(files: Sequence[FileView]) -> int:
    return sum(file.size_bytes or 0 for file in files)


def suggest(
    view: VersionView, chosen: Chosen, model: Described, fleet: Sequence[GpuClass]
) -> tuple[Entry, tuple[str, ...]]:
    """For a version that is whole. The entry, and what was read and guessed."""
    notes = list(_read_notes(model))
    notes.append(f"weights: {len(chosen.paths)} files, {gb(chosen.size_bytes)}; run by {chosen.engine}")
    profiles = _profiles(chosen, model, fleet, notes)
    name, version = catalog_name(view.model), catalog_version(view.version)
    same_name = (name, version) == (view.model, view.version)
    if not same_name:
        notes.append(
            f"the catalog's names are narrower: {name} {version} becomes a version of its own in the mirror, "
            "over the same content; nothing is fetched again"
        )
    aliases = _aliases(view, name)
    if aliases:
        notes.append(f"clients may ask for {', '.join(aliases)}, too: the name it was published under")
    if hidden := [file.source.path for file in view.files if shown(file.source.url) != file.source.url]:
        notes.append(
            f"the URLs of {len(hidden)} files held a query, which may be a credential and is left out "
            f"({hidden[0]}): write it in, or the mirror refuses the files as others"
        )
    entry = Entry(name, aliases, version, view.files, chosen.entry, profiles, same_name)
    return entry, tuple(notes)


def _read_notes(model: Described) -> list[str]:
    if not model.read_from:
        return ["no file says what the model is: GPUs are reckoned from the size of the weights alone"]
    said = [f"read in {', '.join(model.read_from)}: {model.architecture or 'no architecture'}"]
    if model.context_length is not None:
        said.append(f"context {model.context_length}")
    if model.quantisation is not None:
        said.append(f"quantised as {model.quantisation}")
    elif model.precision is not None:
        said.append(f"in {model.precision}")
    notes = [", ".join(said)]
    if model.context_length is None:
        notes.append("no context length is told: the engine takes its own")
    if model.chat_template is False:
        notes.append("no chat template: chat requests are refused; give one to the engine in args")
    if model.own_code:
        notes.append(
            "config.json names code of the repository (auto_map): if the engine does not know the "
            'architecture by itself, read that code, then add "--trust-remote-code" to args'
        )
    architecture = model.architecture or ""
    if architecture[:1].isupper() and not architecture.endswith(_GENERATES):
        notes.append(f"{architecture} may be no model that writes text: see how the engine serves it")
    if model.cache is None:
        notes.append("what its cache costs is not told: the context is the model's own, and may not fit")
    elif model.cache_is_upper_bound:
        notes.append("some layers look back over a window only: longer contexts may fit than are given here")
    return notes


def _profiles(
    chosen: Chosen, model: Described, fleet: Sequence[GpuClass], notes: list[str]
) -> tuple[Profile, ...]:
    if not fleet:
        notes.append(f"no fleet was given: {GUESSED_CLASS.name} is a guess, change gpu_class to one of yours")
    classes = list(fleet) or [GUESSED_CLASS]
    fits = [
        found
        for one in classes
        if (found := fit(chosen.size_bytes, model, one, engine=chosen.engine)) is not None
    ]
    if missing := sorted({one.name for one in classes} - {found.gpu_class for found in fits}):
        notes.append(f"does not fit {', '.join(missing)}")
    if not fits:
        largest = max(classes, key=lambda one: (one.fabric_bytes, one.name))
        fits = [at_most(chosen.size_bytes, model, largest, engine=chosen.engine)]
        notes.append(f"fits no class of this fleet; {largest.name} stands here to be changed")
    notes.append(
        "memory_bytes is reckoned for one request of that context; once it ran, leave it out: what was "
        "measured is used instead"
    )
    # Few large devices before many small ones: less talk between them. The order is the order of preference.
    fits = sorted(fits, key=lambda one: (one.gpus, -(one.context_length or 0), one.gpu_class))
    profiles = [Profile(_profile_name(one), chosen.engine, one) for one in fits]
    if chosen.engine == "vllm":
        notes.append(
            "sglang stands last: the same GPUs with another engine, taken when no other profile fits"
        )
        best = next(one for one in classes if one.name == fits[0].gpu_class)
        other = fit(chosen.size_bytes, model, best, engine="sglang") or fits[0]
        profiles.append(Profile(f"{_profile_name(other)[:57]}-sglang", "sglang", other))
    return tuple(_distinct(profiles))


def _profile_name(one: Fit) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", one.gpu_class.lower()).strip("-")[:40] or "gpu"
    return slug if one.gpus == 1 else f"{slug}x{one.gpus}"


def _distinct(profiles: Sequence[Profile]) -> list[Profile]:
    """Two classes may have one slug: the later is numbered."""
    seen: dict[str, int] = {}
    found = []
    for one in profiles:
        seen[one.name] = seen.get(one.name, 0) + 1
        found.append(one if seen[one.name] == 1 else replace(one, name=f"{one.name}-{seen[one.name]}"))
    return found


def catalog_name(model: str) -> str:
    """The model's name as the catalog takes it: no capitals, and letters, digits and `. _ / -` only."""
    if _MODEL_NAME.fullmatch(model) and "//" not in model and ".." not in model:
        return model
    name = re.sub(r"[^a-z0-9._/-]+", "-", model.lower())
    name = re.sub(r"\.{2,}", ".", re.sub(r"/{2,}", "/", name))[:128].strip("._/-")
    return name if _MODEL_NAME.fullmatch(name) else "model"


def catalog_version(version: str) -> str:
    if _WORD.fullmatch(version) and ".." not in version:
        return version
    word = re.sub(r"\.{2,}", ".", re.sub(r"[^A-Za-z0-9._-]+", "-", version))[:64].strip("._-")
    return word or "v1"


def _aliases(view: VersionView, name: str) -> tuple[str, ...]:
    """The names it is known by elsewhere, where the catalog takes them."""
    wanted = [view.model, *([view.repository.id] if view.repository is not None else [])]
    fine = [
        one for one in wanted if one != name and _ALIAS.fullmatch(one) and ".." not in one and "//" not in one
    ]
    return tuple(dict.fromkeys(fine))
