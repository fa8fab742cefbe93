"""What a caller's words choose from a listing: whole choices, never one shard of many (H20)."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from llmgw_kit.errors import InvalidRequest, NotFound
from llmgw_mirror.core.file_groups import FileGroup, by_name, companions
from llmgw_mirror.core.listed_files import ListedFile
from llmgw_mirror.core.registry_rows import RepositoryListing
from llmgw_mirror.core.weight_files import is_code

#: Of a commit, in the name of a version: what people can read, and nobody finds twice in one repository.
COMMIT_SHOWN = 12


@dataclass(frozen=True)
class Chosen:
    """`files`: what was asked for; `along`: what comes with it. `groups`: those that are taken whole.
    `label`: None for the registry's usual choice, else what tells this choice from others of its commit."""

    files: tuple[ListedFile, ...]
    along: tuple[ListedFile, ...]
    groups: tuple[FileGroup, ...]
    label: str | None

    def version_name(self, commit: str) -> str:
        """The same for the same choice of the same commit, and only for it."""
        return commit[:COMMIT_SHOWN] + ("" if self.label is None else f"-{self.label}")

    @property
    def all_files(self) -> tuple[ListedFile, ...]:
        return (*self.files, *self.along)


def choose(
    listing: RepositoryListing, groups: Sequence[FileGroup], *, names: Sequence[str], paths: Sequence[str],
    take_code: bool,
) -> Chosen:  # fmt: skip
    """By groups and paths; the preselected group when neither is given. Raises NotFound, InvalidRequest."""
    usual = next((group for group in groups if group.preselected), None)
    if not names and not paths:
        if usual is None:
            raise InvalidRequest(
                f"{listing.id} has no weights that are chosen by themselves",
                code="nothing_to_choose",
                next_steps=["name groups or paths" if listing.files else "look for another repository"],
            )
        taken: list[FileGroup] = [usual]
    else:
        taken = [_group(name, groups, listing) for name in dict.fromkeys(names)]
    single = [_file(path, listing) for path in dict.fromkeys(paths)]
    taken_paths = {path for group in taken for path in group.paths}
    wanted = {file.path: file for group in taken for file in group.files}
    # One shard stands for all that it belongs to.
    splits = {path: group for group in groups if group.splits for path in group.paths}
    for file in single:
        whole = splits[file.path].files if file.path in splits else (file,)
        wanted |= {shard.path: shard for shard in whole}
    extra = sorted(path for path in wanted if path not in taken_paths)
    along = [file for file in companions(listing.files) if file.path not in wanted]
    if take_code:
        along += [file for file in listing.files if is_code(file.path) and file.path not in wanted]
    files = tuple(wanted[path] for path in sorted(wanted))
    return Chosen(
        files,
        tuple(sorted(along, key=lambda file: file.path)),
        tuple(taken),
        _label(taken, usual, extra, with_code=take_code and any(is_code(file.path) for file in along)),
    )


def _label(
    taken: Sequence[FileGroup], usual: FileGroup | None, extra: Sequence[str], *, with_code: bool
) -> str | None:
    plain = usual is not None and list(taken) == [usual] and not extra
    return choice_label([] if plain else [group.name for group in taken], extra, with_code=with_code)


def choice_label(groups: Sequence[str], extra: Sequence[str], *, with_code: bool) -> str | None:
    """What is added to a commit's name for a choice: its groups, and its files beside them in order. None:
    the usual choice, which needs no word."""
    words = sorted(groups)
    if extra:
        # Paths are too long for a name.
        words.append(hashlib.sha256("\0".join(extra).encode()).hexdigest()[:8])
    if with_code:
        words.append("code")
    return "+".join(words) or None


def _group(name: str, groups: Sequence[FileGroup], listing: RepositoryListing) -> FileGroup:
    known = by_name(groups)
    if (found := known.get(name.lower())) is not None:
        return found
    raise NotFound(
        f"{listing.id} has no group {name[:100]!r}",
        code="unknown_group",
        next_steps=[_near(name, sorted(known)), f"groups of this commit: {', '.join(known) or 'none'}"],
    )


def _file(path: str, listing: RepositoryListing) -> ListedFile:
    known = {file.path: file for file in listing.files}
    if (found := known.get(path)) is not None:
        return found
    for odd in listing.odd:
        if odd.path == path:
            raise InvalidRequest(
                f"{path!r} of {listing.id} is not offered: {odd.why}",
                code="odd_file",
                next_steps=["choose other files: such a name cannot be kept on every node"],
            )
    raise NotFound(
        f"{listing.id} has no file {path[:200]!r} at {listing.commit[:COMMIT_SHOWN]}",
        code="unknown_path",
        next_steps=[_near(path, sorted(known))],
    )


def _near(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name[:200], known, n=3, cutoff=0.5)
    return f"perhaps {' or '.join(close)}" if close else "look at the files that are listed"
