"""Which version a name means, where a name may be short, or a place in a registry."""

from collections.abc import Sequence

from llmgw_kit.errors import Conflict, InvalidRequest, NotFound
from llmgw_mirror.core.versions import VersionView

#: Shorter beginnings are typed by mistake more often than on purpose.
PREFIX_MIN_CHARS = 4
USUAL_REVISION = "main"


def by_name(views: Sequence[VersionView], model: str | None, version: str) -> VersionView:
    """The version of exactly this name, else the only one that begins so; of any model when `model` is None.

    Raises NotFound, Conflict when several begin so, InvalidRequest for too short a beginning."""
    mine = [view for view in views if model in (None, view.model)]
    found = [view for view in mine if view.version == version]
    whose = "" if model is None else f" of {model!r}"
    if not found:
        if len(version) < PREFIX_MIN_CHARS:
            raise InvalidRequest(
                f"{version!r} is no version{whose}, and too short for the beginning of one",
                next_steps=[f"give {PREFIX_MIN_CHARS} characters at least"],
            )
        found = [view for view in mine if view.version.startswith(version)]
    return _only(found, f"version {version!r}{whose}")


def by_place(views: Sequence[VersionView], repository: str, revision: str | None) -> VersionView:
    """The version that came from there. A branch or tag means the commit it was asked at last: it may have
    moved since; the beginning of a commit may stand for it. Without a revision it is the usual branch, else
    what was asked for last: versions that were asked for by a commit are of no branch.

    Raises NotFound, Conflict when several versions came from that commit."""
    named = revision or USUAL_REVISION
    here = [view for view in views if view.repository is not None and view.repository.id == repository]
    found = [view for view in here if view.repository is not None and view.repository.revision == named]
    if not found and revision is None:
        found = here
    if found:
        newest = max(found, key=lambda view: view.created_at).repository
        found = [view for view in here if newest is not None and _commit(view) == newest.commit]
    elif len(named) >= PREFIX_MIN_CHARS:
        found = [view for view in here if _commit(view).startswith(named.lower())]
    return _only(found, f"{named!r} of repository {repository!r}")


def _commit(view: VersionView) -> str:
    assert view.repository is not None, "only versions of the repository are looked at"
    return view.repository.commit


def _only(found: Sequence[VersionView], what: str) -> VersionView:
    if not found:
        raise NotFound(
            f"{what} is not here",
            code="unknown_version",
            next_steps=["list the versions that are here, or fetch it"],
        )
    if len(found) > 1:
        names = [f"{view.model} {view.version}" for view in found]
        raise Conflict(
            f"{what} may mean {len(found)} versions: {', '.join(names[:5])}"
            + (f" and {len(names) - 5} more" if len(names) > 5 else ""),
            code="ambiguous",
            next_steps=["give model and version in full"],
        )
    return found[0]
