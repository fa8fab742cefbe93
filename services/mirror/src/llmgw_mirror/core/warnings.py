"""What will break, told before a byte is fetched: one line each, with what to do about it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from llmgw_kit.text import joined
from llmgw_mirror.core.file_groups import FileGroup, grouped
from llmgw_mirror.core.listed_files import ListedFile
from llmgw_mirror.core.registry_rows import RepositoryListing
from llmgw_mirror.core.weight_files import is_code
from llmgw_mirror.core.weight_index import Mismatch, ShardIndex, mismatches, unread_for

#: Memory beside the weights that a start needs at the very least: activations, graphs, some KV cache.
OVERHEAD = 1.2
#: The Hub's clients refuse larger files without its own transfer protocol, which no mirror speaks
#: (huggingface_hub 0.36 and 1.0.1 always, 2.x when it is told the size).
CLIENT_MAX_BYTES = 50_000_000_000


@dataclass(frozen=True)
class Warning:
    """`code`: a stable word for programs. `blocks`: a fetch is refused unless this code is accepted."""

    code: str
    text: str
    next_steps: tuple[str, ...] = ()
    blocks: bool = False


@dataclass(frozen=True)
class GpuClass:
    """Of the fleet. `devices_per_node`: of the largest node with it; `nodes_per_fabric`: so many at most."""

    name: str
    memory_bytes: int
    devices_per_node: int
    nodes_per_fabric: int

    @property
    def node_bytes(self) -> int:
        return self.memory_bytes * max(1, self.devices_per_node)

    @property
    def fabric_bytes(self) -> int:
        return self.node_bytes * max(1, self.nodes_per_fabric)


@dataclass(frozen=True)
class CodeNamed:
    """Whether config.json names code of the repository (auto_map). None: it could not be read, and why."""

    needed: bool | None
    why: str | None = None


def of_repository(
    listing: RepositoryListing, *, asked: str, grant: bool | None, code: CodeNamed
) -> tuple[Warning, ...]:
    """Those that hold whatever is chosen. `grant`: whether the registry gives this mirror the files of a
    gated repository; False without a token or when it refused one; None: there is a token, and nothing was
    asked for."""
    found = []
    if listing.id != asked:
        found.append(Warning(
            "renamed", f"the registry calls this repository {listing.id}; it is kept as {asked}",
            (f"ask for {listing.id} where clients will ask for that name",),
        ))  # fmt: skip
    if listing.gated is not None:
        found.append(_gated(listing.gated, grant=grant))
    if (warning := _remote_code(listing, code)) is not None:
        found.append(warning)
    if listing.odd:
        names = joined([odd.path for odd in listing.odd])
        found.append(Warning("odd_files", f"{len(listing.odd)} rows of the listing are not offered: {names}"))
    return tuple(found)


def _gated(word: str, *, grant: bool | None) -> Warning:
    text = f"the repository is gated ({word}): its files are given to tokens with a grant only"
    if grant is False:
        steps = ("ask for access in the registry", "set registry_token to a token that was granted it")
        return Warning("gated", f"{text}, which this mirror has not", steps, blocks=True)
    if grant:
        return Warning("gated", f"{text}; this mirror's token has one")
    return Warning("gated", text, ("make sure the mirror's token was granted access in the registry",))


def _remote_code(listing: RepositoryListing, code: CodeNamed) -> Warning | None:
    python = [file.path for file in listing.files if is_code(file.path) and "/" not in file.path]
    steps = (
        "accept remote_code to take the code along, after reading it; the engine must be told to trust it",
        "or do nothing: many engines know the architecture by themselves",
    )
    if code.needed:
        return Warning(
            "remote_code", "config.json names code of the repository (auto_map); it is left out", steps
        )
    if code.needed is None and python:
        text = f"the repository has code ({joined(python)}) and config.json was not read ({code.why})"
        return Warning("remote_code", f"{text}; the code is left out", steps)
    return None


def of_group(
    group: FileGroup, *, safe: Sequence[str], found: Sequence[Mismatch], unread: Sequence[str],
    fleet: Sequence[GpuClass],
) -> tuple[Warning, ...]:  # fmt: skip
    """What is wrong with one choice. `safe`: whole groups that are no pickles; `found`: of its indexes;
    `unread`: those of them that could not be read, each with why."""
    told = _of_shards(group, found, "the repository")
    if group.pickled:
        told.append(_pickled(safe))
    if group.format == "gguf-pieces":
        told.append(Warning(
            "pieces", "these are pieces to be joined by hand; no engine loads them as they are",
            ("take another group, or join them and publish the result",), blocks=True,
        ))  # fmt: skip
    told += _of_unread(unread)
    told += of_files(group.files)
    if (fit := fits(group.total_bytes, fleet)) is not None:
        told.append(fit)
    return tuple(told)


def of_version(
    paths: Sequence[str], indexes: Sequence[ShardIndex], unread: Mapping[str, str]
) -> tuple[Warning, ...]:
    """What lacks in a version that is kept, by its files' paths. Nothing blocks: it was fetched already, from
    explicit URLs or by somebody who accepted it. `unread`: indexes that could not be read, by path."""
    told: list[Warning] = []
    for group in grouped([ListedFile(path) for path in paths]):
        shards = _of_shards(group, mismatches(group, indexes, paths), "this version")
        told += [replace(one, next_steps=_KEPT_STEPS, blocks=False) for one in shards]
        told += _of_unread(unread_for(group, unread))
    return tuple(told)


_KEPT_STEPS = ("fetch a version that has all of them, or see whether the engine loads it as it is",)


def _of_shards(group: FileGroup, found: Sequence[Mismatch], place: str) -> list[Warning]:
    """`place`: where the files are looked for."""
    told = [_mismatch(group, one, place) for one in found]
    if not found and (gap := _gap(group)) is not None:
        told.append(gap)
    return told


def _of_unread(unread: Sequence[str]) -> list[Warning]:
    return [Warning("index_unread", f"an index was not read: {why}") for why in unread]


def _mismatch(group: FileGroup, one: Mismatch, place: str) -> Warning:
    if one.stale:
        there = len(group.files)
        text = (
            f"{one.index} names {one.named} shards, {len(one.missing)} of them not in {place}; "
            f"{there} other shards are whole by their own numbers"
            if one.missing
            else f"{one.index} does not name {len(one.left_out)} of the shards: {joined(one.left_out)}"
        )
        return Warning(
            "stale_index", f"{text}: loaders that trust the index leave weights out without a word",
            ("take another revision or another group", "accept stale_index if the engine reads no index"),
            blocks=True,
        )  # fmt: skip
    text = f"{one.index} names {one.named} shards, {len(one.missing)} are not in {place}"
    return Warning(
        "missing_shard", f"{text}: {joined(one.missing)}",
        ("take another revision: this one was perhaps never uploaded whole",), blocks=True,
    )  # fmt: skip


def _gap(group: FileGroup) -> Warning | None:
    for split in group.splits:
        if split.beyond:
            text = f"shard {split.beyond[0]} of {split.of} cannot be"
        elif split.gaps:
            of = "" if split.of is None else f" of {split.of}"
            numbers = joined([str(n) for n in split.gaps])
            text = f"shards are missing{of}: {numbers} ({len(split.parts)} are there)"
        else:
            continue
        where = "/".join(part for part in (split.folder, split.stem) if part)
        return Warning(
            "split_gap", f"{where}: {text}", ("take another revision or another group",), blocks=True
        )  # fmt: skip
    return None


def safe_groups(groups: Sequence[FileGroup]) -> tuple[str, ...]:
    """Whole ones whose loading runs no code, best first."""
    return tuple(group.name for group in groups if not group.pickled and group.whole)


def _pickled(safe: Sequence[str]) -> Warning:
    if safe:
        return Warning(
            "pickle", "the files are pickles, which may run code when they are loaded",
            (f"take {safe[0]} instead: the same repository has it",),
        )  # fmt: skip
    return Warning(
        "pickle_only", "the weights are there as pickles only, which may run code when they are loaded",
        ("look for a conversion to safetensors", "accept pickle_only if the publisher is trusted"),
        blocks=True,
    )  # fmt: skip


def of_files(files: Sequence[ListedFile]) -> list[Warning]:
    """What their rows say, or do not."""
    found = []
    odd = [f"{file.path} ({file.odd})" for file in files if file.size_bytes is None]
    if odd:
        text = f"{len(odd)} files have no size that can be used: {joined(odd)}"
        found.append(Warning("odd_size", f"{text}; whether they fit is known when they come"))
    unproved = [file.path for file in files if file.sha256 is None]
    if unproved:
        by_git = all(file.git_id is not None for file in files if file.sha256 is None)
        proof = "proved by their git id" if by_git else "taken as they come"
        text = f"{len(unproved)} files have no published sha256 and are {proof}: {joined(unproved)}"
        found.append(Warning("no_checksum", text))
    large = [file.path for file in files if (file.size_bytes or 0) > CLIENT_MAX_BYTES]
    if large:
        found.append(Warning(
            "over_50_gb", f"over 50 GB, so that the Hub's own clients may refuse them: {joined(large)}",
            ("let the nodes' agents fetch them: they are not bound by it",),
        ))  # fmt: skip
    return found


def not_recorded(why: str) -> Warning:
    """Here and served all the same; only what reads the database does not see it."""
    return Warning(
        "not_recorded", f"the database does not list it: {why}",
        ("remove this version and ask for it again: llmgwctl mirror versions",),
    )  # fmt: skip


def fits(total_bytes: int | None, fleet: Sequence[GpuClass]) -> Warning | None:
    """Against every GPU class there is; None: it fits one device somewhere, or nobody can tell."""
    if total_bytes is None or not fleet:
        return None
    needed = total_bytes * OVERHEAD
    about = f"{gb(total_bytes)} of weights need about {gb(needed)} of GPU memory"
    if any(needed <= one.memory_bytes for one in fleet):
        return None
    if by_node := [one for one in fleet if needed <= one.node_bytes]:
        best = min(by_node, key=lambda one: (_devices(needed, one), one.name))
        return Warning("several_gpus", f"{about}: {_devices(needed, best)} devices of {best.name} at least")
    if by_fabric := [one for one in fleet if needed <= one.fabric_bytes]:
        best = min(by_fabric, key=lambda one: (-(-needed // one.node_bytes), one.name))
        nodes = int(-(-needed // best.node_bytes))
        return Warning("several_nodes", f"{about}: {nodes} whole nodes of {best.name} on one fabric at least")
    largest = max(fleet, key=lambda one: (one.fabric_bytes, one.name))
    return Warning(
        "fits_no_class",
        f"{about}; the most that one fabric has is {gb(largest.fabric_bytes)} ({largest.name})",
        ("take a smaller quantisation", "add nodes"),
    )  # fmt: skip


def _devices(needed: float, one: GpuClass) -> int:
    return int(-(-needed // one.memory_bytes))


def disk(needed_bytes: int | None, free_bytes: int, reserve_bytes: int) -> Warning | None:
    """Whether what has to come fits beside what is kept free. `needed_bytes` None: nobody can tell."""
    if needed_bytes is None or needed_bytes + reserve_bytes <= free_bytes:
        return None
    free = max(0, free_bytes - reserve_bytes)
    return Warning(
        "disk_too_small", f"{gb(needed_bytes)} have to come and {gb(free)} are free",
        ("remove versions that nobody needs", "give the mirror's store a larger disk"), blocks=True,
    )  # fmt: skip


def refusing(warnings: Sequence[Warning], accepted: Collection[str]) -> tuple[Warning, ...]:
    """Those that stand in the way."""
    return tuple(one for one in warnings if one.blocks and one.code not in accepted)


def gb(count: float) -> str:
    """For people, in decimal units as registries show them."""
    if count < 1e6:
        return f"{count / 1e3:.1f} kB"
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
