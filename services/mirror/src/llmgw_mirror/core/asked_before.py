"""Which version that is here an order means, where the registry cannot be asked: what its branches are now is
then unknown, and what a commit or a version means never changes."""

from collections.abc import Sequence

from llmgw_mirror.core.choosing import COMMIT_SHOWN, choice_label
from llmgw_mirror.core.file_groups import grouped
from llmgw_mirror.core.listed_files import ListedFile
from llmgw_mirror.core.registry_names import is_commit
from llmgw_mirror.core.versions import VersionView
from llmgw_mirror.core.weight_files import is_code


def asked_before(
    views: Sequence[VersionView], *, repository: str, revision: str | None, model: str, version: str | None,
    groups: Sequence[str] = (), paths: Sequence[str] = (), take_code: bool = False,
) -> VersionView | None:  # fmt: skip
    """The one version of `model` from this repository that is certainly meant: by its name, or by a commit;
    and with the choice that is asked for, where one is. None: only the registry can tell."""
    at_commit = revision is not None and is_commit(revision)
    if version is None and not at_commit:
        return None
    found: list[tuple[bool, VersionView]] = []
    for view in views:
        place = view.repository
        if place is None or place.id != repository or view.model != model:
            continue
        if version is not None and view.version != version:
            continue
        # A branch is where it was when it was asked for; another one may be anywhere.
        means = (place.commit, place.revision)
        if revision is not None and (revision.lower() if at_commit else revision) not in means:
            continue
        own = place.commit[:COMMIT_SHOWN]
        if groups or paths:
            label = _label(view, groups, paths, take_code=take_code)
            if label is not None:
                found.append((view.version == f"{own}-{label}", view))
        elif version is not None or view.version == own + ("-code" if take_code else ""):
            found.append((True, view))
    # One choice may have two names, by its group and by its files; what they have is the same.
    return max(found, key=lambda one: one[0])[1] if found else None


def _label(view: VersionView, groups: Sequence[str], paths: Sequence[str], *, take_code: bool) -> str | None:
    """How the choice is called, where a version has what is chosen, and nothing but companions besides; None
    where it has not."""
    chosen = [file.source for file in view.files if not file.source.companion]
    files = [ListedFile(one.path, one.size_bytes, one.sha256, one.git_id) for one in chosen]
    named = {group.name.lower(): group for group in grouped(files)}
    if any(name.lower() not in named for name in groups):
        return None
    whole = {path for name in groups for path in named[name.lower()].paths}
    single = set(paths) - whole
    # One shard stands for all that it belongs to.
    for group in named.values():
        if group.splits and group.paths & single:
            single |= group.paths
    with_code = any(is_code(file.source.path) and file.source.companion for file in view.files)
    if whole | single != {file.path for file in files} or (with_code and not take_code):
        return None
    return choice_label([named[name.lower()].name for name in groups], sorted(single), with_code=with_code)
