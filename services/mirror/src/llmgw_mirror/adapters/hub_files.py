"""One file for a Hub client: its bytes, or when they will be here, or that they will not."""

from collections.abc import Mapping, Sequence

from aiohttp import web

from llmgw_mirror.adapters.file_answer import FileAnswers
from llmgw_mirror.adapters.hub_index import HubIndex
from llmgw_mirror.adapters.hub_refusals import Refusal, choosing, not_found, on_its_way, retrying
from llmgw_mirror.core.hub import At, HeldFile, Missing, Offer, look_up, wait_s
from llmgw_mirror.core.hub_requests import Resolve, client_generation
from llmgw_mirror.pull_through import PullThrough
from llmgw_mirror.service import Mirror

#: From this generation on clients start a very large file only if HEAD tells no size; older ones never.
SIZELESS_GENERATION = 2


class HubFiles:
    """`big_bytes`: above it, newer clients refuse a file whose size HEAD tells."""

    def __init__(
        self, mirror: Mirror, index: HubIndex, answers: FileAnswers, pull: PullThrough, *, big_bytes: int
    ) -> None:
        self._mirror = mirror
        self._index = index
        self._answers = answers
        self._pull = pull
        self._big_bytes = big_bytes

    async def answer(self, request: web.Request, asked: Resolve, at: At) -> web.StreamResponse:
        """HEAD or GET of a file at a commit. Raises Refusal."""
        found = look_up(at, asked.path)
        if isinstance(found, HeldFile):
            if at.commit is None:
                # Of a version without a repository, which gets its commit when it is whole.
                raise await self.coming(at.offers, None)
            if await self._index.there(found):
                return await self._file(request, found, at.commit)
            # Set aside as damaged, and on its way again.
            found = Missing.COMING, tuple(offer for offer in at.offers if asked.path in offer.held)
        raise await self._refusal(asked, at, *found)

    async def _refusal(self, asked: Resolve, at: At, why: Missing, offers: Sequence[Offer]) -> Refusal:
        path = asked.path
        if why is Missing.COMING:
            return await self.coming(offers, at.commit, path=path)
        if why is Missing.STUCK:
            return _stuck(path, offers[0].stuck[path], offers[0])
        what = f"{path!r} of {asked.repository!r}"
        if why is Missing.NO_SUCH_FILE:
            return not_found("EntryNotFound", f"{what} does not exist at this commit", commit=at.commit)
        # From here on without the commit: a client would remember that there is no such file.
        if at.commit is None:
            return not_found("EntryNotFound", f"{what} is not on this mirror")
        if self._pull.allows(asked.repository):
            await self._pull.demand(asked.repository, at.commit, path)
            return on_its_way(f"{path!r} is fetched now", wait_s=None, commit=at.commit)
        step = choosing(asked.repository, "--revision", at.commit, "--file", path)
        return not_found("EntryNotFound", f"{what} is not on this mirror", step)

    async def coming(
        self, offers: Sequence[Offer], commit: str | None, *, path: str | None = None
    ) -> Refusal:
        """One file, or all of the versions, with the soonest of their estimates."""
        views = [await self._mirror.version(offer.model, offer.version) for offer in offers]
        found = [view for view in views if view is not None]
        waits = [wait for view in found if (wait := wait_s(view, path)) is not None]
        files = [file for view in found for file in view.files if path in (None, file.source.path)]
        if path is not None and files and all(file.error is not None for file in files):
            # Since the store was looked at, or noted nowhere because the disk is full.
            return _stuck(path, files[0].error or "", offers[0])
        here = sum(file.received_bytes for file in files)
        sizes = [file.size_bytes for file in files if file.size_bytes is not None]
        of = f" of {sum(sizes)}" if len(sizes) == len(files) else ""
        what = "it" if path is None else repr(path)
        told = f"{what} is on its way: {here}{of} bytes are here; ask again"
        return on_its_way(told, wait_s=min(waits, default=None), commit=commit)

    async def _file(self, request: web.Request, file: HeldFile, commit: str) -> web.StreamResponse:
        etag = f'"{file.etag}"'
        headers = {"X-Repo-Commit": commit, "X-Linked-ETag": etag}
        if request.method == "HEAD" and self._too_big_to_tell(request, file):
            return await _sizeless(request, headers | {"ETag": etag})
        headers["X-Linked-Size"] = str(file.size_bytes)
        return await self._answers.file(request, file.sha256, file.size_bytes, etag=etag, more=headers)

    def _too_big_to_tell(self, request: web.Request, file: HeldFile) -> bool:
        generation = client_generation(request.headers.get("User-Agent"))
        newer = generation is not None and generation >= SIZELESS_GENERATION
        return newer and file.size_bytes > self._big_bytes


def _stuck(path: str, why: str, offer: Offer) -> Refusal:
    return not_found("FetchFailed", f"{path!r}: {why}", retrying(offer))


async def _sizeless(request: web.Request, headers: Mapping[str, str]) -> web.StreamResponse:
    """HEAD without any size: the client learns it from the GET."""
    response = web.StreamResponse(
        headers={**headers, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    )
    if request.version >= (1, 1):
        response.enable_chunked_encoding()
    await response.prepare(request)
    return response
