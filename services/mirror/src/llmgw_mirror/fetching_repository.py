"""Files of the registry, chosen by an operator and fetched at the commit that was looked at."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Conflict, InvalidRequest, NotConfigured, Unavailable
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.listings import NAME as LISTING
from llmgw_mirror.adapters.listings import listing_bytes, put_listing
from llmgw_mirror.adapters.store import Store, version_id
from llmgw_mirror.core import warnings
from llmgw_mirror.core.asked_before import asked_before
from llmgw_mirror.core.choosing import Chosen, choose
from llmgw_mirror.core.registry_names import check_repository, file_url
from llmgw_mirror.core.registry_rows import RepositoryListing
from llmgw_mirror.core.versions import Source, VersionView, WeightsState, differences, view_file, wish
from llmgw_mirror.core.warnings import GpuClass, Warning
from llmgw_mirror.finding import Finding, Look, to_come
from llmgw_mirror.service import Mirror

log = logging.getLogger(__name__)

#: The code by which a caller takes a repository's Python files along.
REMOTE_CODE = "remote_code"


@dataclass(frozen=True)
class Order:
    """What a caller asks for. `groups` and `paths`: with neither, the preselected group; `model` and
    `version`: names of its own; `accepted`: codes of warnings that are known and taken."""

    repository: str
    revision: str | None = None
    groups: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    model: str | None = None
    version: str | None = None
    accepted: frozenset[str] = frozenset()
    fleet: tuple[GpuClass, ...] = ()
    asked_by: str | None = None


@dataclass(frozen=True)
class Ordered:
    """`bytes_to_fetch`: None while one size is unknown."""

    version: VersionView
    warnings: tuple[Warning, ...]
    bytes_to_fetch: int | None


@dataclass(frozen=True)
class _Plan:
    model: str
    version: str
    sources: tuple[Source, ...]
    known: VersionView | None
    proposed: str
    answer: Ordered


class FetchingRepository:
    """Looks, chooses, warns, and hands the rest to the mirror."""

    def __init__(
        self, *, finding: Finding, mirror: Mirror, store: Store, threads: DiskThreads, clock: Clock,
        reserve_bytes: int,
    ) -> None:  # fmt: skip
        self._finding = finding
        self._mirror = mirror
        self._store = store
        self._threads = threads
        self._clock = clock
        self._reserve_bytes = reserve_bytes

    async def preview(self, order: Order) -> Ordered:
        """What would come and what will break; nothing is fetched and nothing noted. Raises as `fetch` does,
        but for warnings that block."""
        try:
            look = await self._finding.look(order.repository, order.revision, order.fleet)
        except (Unavailable, NotConfigured) as e:
            return _as_known(await self._known_without(order, e), e)
        return (await self._planned(order, look)).answer

    async def fetch(self, order: Order) -> Ordered:
        """Asked again, the same order is answered and not fetched twice; without the registry, too, where a
        commit or a version that is here is named. Raises InvalidRequest, NotFound, Conflict, Denied,
        Unavailable, NotConfigured."""
        try:
            look = await self._finding.look(order.repository, order.revision, order.fleet)
        except (Unavailable, NotConfigured) as e:
            known = await self._known_without(order, e)
            sources = [file.source for file in known.files]
            view = await self._mirror.fetch(
                known.model, known.version, sources, repository=known.repository, asked_by=order.asked_by
            )
            return _as_known(view, e)
        plan = await self._planned(order, look)
        # A version that is known was let in before.
        if plan.known is None and (refusing := warnings.refusing(plan.answer.warnings, order.accepted)):
            raise _refused(order.repository, refusing)
        paths = look.listing.paths
        view = await self._mirror.fetch(
            plan.model, plan.version, plan.sources, repository=look.repository, asked_by=order.asked_by,
            beside=None if paths is None else {LISTING: listing_bytes(paths)},
        )  # fmt: skip
        if plan.known is not None:
            # It may have come in a bundle, or from a release that noted none.
            await self._note_listing(plan, look.listing)
        return Ordered(view, plan.answer.warnings, plan.answer.bytes_to_fetch)

    async def _known_without(self, order: Order, e: Unavailable | NotConfigured) -> VersionView:
        """The version that is meant, which is here or on its way. Raises `e`, with what it was needed for."""
        check_repository(order.repository)
        model = order.model or order.repository
        known = asked_before(
            await self._mirror.versions(model), repository=order.repository, revision=order.revision,
            model=model, version=order.version, groups=order.groups, paths=order.paths,
            take_code=REMOTE_CODE in order.accepted,
        )  # fmt: skip
        if known is None:
            e.next_steps = (
                *e.next_steps,
                "without it, name what is here already: its commit, or its version as MODEL@VERSION",
            )
            raise e
        log.info("%s %s is answered without the registry: %s", known.model, known.version, e.text)
        return known

    async def _planned(self, order: Order, look: Look) -> _Plan:
        chosen = choose(
            look.listing, look.groups, names=order.groups, paths=order.paths,
            take_code=REMOTE_CODE in order.accepted,
        )  # fmt: skip
        model = order.model or order.repository
        proposed = chosen.version_name(look.listing.commit)
        version = order.version or proposed
        sources = tuple(self._sources(look, chosen))
        asked = wish(model, version, sources, now=self._clock.unix_s(), repository=look.repository)
        known = next((v for v in await self._mirror.versions(model) if v.version == version), None)
        if known is not None:
            _must_agree(known, asked.files, proposed)
        here = frozenset(
            file.source.path
            for file in ([] if known is None else known.files)
            if file.state is WeightsState.PRESENT
        )
        come = to_come(chosen.all_files, here | look.space.here)
        told = _warnings(look, chosen)
        if (room := warnings.disk(come, look.space.usable_bytes, self._reserve_bytes)) is not None:
            told = (*told, room)
        view = known or VersionView(
            model, version, asked.created_at,
            tuple(view_file(source, receipt=None, failure=None, moving=None) for source in asked.files),
            look.repository,
        )  # fmt: skip
        return _Plan(model, version, sources, known, proposed, Ordered(view, told, come))

    def _sources(self, look: Look, chosen: Chosen) -> list[Source]:
        base, at = self._finding.registry.http.base_url, look.repository
        along = {file.path for file in chosen.along}
        return [
            Source(
                file.path, file_url(base, at.id, at.commit, file.path), file.sha256, file.size_bytes,
                file.git_id, companion=file.path in along,
            )
            for file in chosen.all_files
        ]  # fmt: skip

    async def _note_listing(self, plan: _Plan, listing: RepositoryListing) -> None:
        if listing.paths is None:
            return
        try:
            await self._threads.run(
                put_listing, self._store, version_id(plan.model, plan.version), listing.paths
            )
        except FileNotFoundError:
            raise Conflict(
                f"version {plan.version!r} of {plan.model!r} is being removed; ask again",
                next_steps=["ask again in a moment"],
            ) from None
        except OSError as e:
            # It says which files the repository lacks; without it that is unknown, and nothing is wrong.
            log.warning("the listing of %s %s was not noted: %s", plan.model, plan.version, e)


def _as_known(view: VersionView, e: Unavailable | NotConfigured) -> Ordered:
    """What is known of a version without looking; of what may break, nothing new."""
    absent = {
        file.source.sha256 or file.source.path: file.size_bytes
        for file in view.files
        if file.state is not WeightsState.PRESENT
    }
    sizes = absent.values()
    come = None if None in sizes else sum(size for size in sizes if size is not None)
    told = Warning("registry_not_asked", f"this is told from what is here: {e.text}", e.next_steps)
    return Ordered(view, (told,), come)


def _must_agree(known: VersionView, asked: Sequence[Source], proposed: str) -> None:
    """A version means the same files for good: another choice needs another name. Raises Conflict."""
    unlike = differences([file.source for file in known.files], asked)
    if not unlike:
        return
    more = f"; and {len(unlike) - 5} more" if len(unlike) > 5 else ""
    names = [proposed] if proposed != known.version else []
    of = f"version {known.version!r} of {known.model!r}"
    raise Conflict(
        f"{of} is known with other files: {'; '.join(unlike[:5])}{more}",
        code="version_differs",
        next_steps=[
            *(f"leave the name away: then it is called {name}" for name in names),
            "give this choice a name of its own, or remove the version first",
        ],
    )


def _warnings(look: Look, chosen: Chosen) -> tuple[Warning, ...]:
    """Of the repository and of every group that something is taken of; room on the disk is told once for
    everything."""
    wanted = {file.path for file in chosen.files}
    told = list(look.warnings)
    covered: set[str] = set()
    for group in look.groups:
        if group.paths & wanted:
            told += [one for one in look.about[group.name] if one.code != "disk_too_small"]
            covered |= group.paths
    told += warnings.of_files([file for file in chosen.files if file.path not in covered])
    return tuple(dict.fromkeys(told))


def _refused(repository: str, refusing: Sequence[Warning]) -> InvalidRequest:
    codes = list(dict.fromkeys(one.code for one in refusing))
    steps = dict.fromkeys(step for one in refusing for step in one.next_steps)
    return InvalidRequest(
        f"{repository} is not fetched: {'; '.join(f'{one.text} [{one.code}]' for one in refusing)}",
        code=codes[0],
        next_steps=[*steps, f"to take it all the same, accept {', '.join(codes)}"],
    )
