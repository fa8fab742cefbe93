"""The Hub's read protocol on the listener of the nodes: `HF_ENDPOINT=http://MIRROR` is all a client needs.

    GET  /api/models…                            search, information, trees, references, commits
    POST /api/models/{repo}/paths-info/{rev}
    HEAD GET /{repo}/resolve/{rev}/{path}        200 with every header, no redirect; 503 while on its way

Everything else below /api is answered at once, with 404: a client that is left waiting takes seconds.
"""

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from llmgw_kit.errors import LlmgwError
from llmgw_mirror.adapters.hub_files import HubFiles
from llmgw_mirror.adapters.hub_index import HubIndex
from llmgw_mirror.adapters.hub_links import base_url, named_paths, next_link
from llmgw_mirror.adapters.hub_refusals import (
    Refusal,
    choosing,
    not_found,
    refusal_of,
    refused,
    retrying,
)
from llmgw_mirror.core import hub_rows
from llmgw_mirror.core.hub import MAIN, At, Offer, find
from llmgw_mirror.core.hub_requests import (
    Commits,
    HubRequest,
    Info,
    OtherKind,
    PathsInfo,
    Query,
    Refs,
    Resolve,
    Search,
    Tree,
    Unknown,
    WhoAmI,
    hub_request,
)  # fmt: skip
from llmgw_mirror.pull_through import PullThrough


class HubHttp:
    """The handlers. `prefix`: a path below which the protocol is offered besides, such as /hub; or empty.
    Nodes ask without it."""

    def __init__(self, index: HubIndex, files: HubFiles, pull: PullThrough, *, prefix: str = "") -> None:
        self._index = index
        self._files = files
        self._pull = pull
        self._prefix = prefix

    def routes(self) -> list[web.RouteDef]:
        """Files have no folder of their own, so their pattern is wide; longer patterns come before it. A dot
        stands for a newline too: patterns are held against the unquoted path."""
        return [
            route
            for prefix in dict.fromkeys(("", self._prefix))
            for route in (
                web.route("*", prefix + "/api/{rest:(?s:.*)}", self.handle),
                web.get(prefix + "/{rest:(?s:.+/resolve/.+)}", self.handle),
            )
        ]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            asked = hub_request(self._split(request)[1])
            query = Query.of(request.rel_url.raw_query_string)
            return await self._answer(request, asked, query)
        except LlmgwError as e:
            return refused(refusal_of(e))

    async def close(self) -> None:
        """Nothing is served any more."""
        await self._pull.close()
        self._index.close()

    def _split(self, request: web.Request) -> tuple[str, str]:
        """The prefix that was used, and the path behind it."""
        path = request.rel_url.raw_path
        prefix = self._prefix if path.startswith(f"{self._prefix}/") else ""
        return prefix, path.removeprefix(prefix)

    async def _answer(self, request: web.Request, asked: HubRequest, query: Query) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD") and not isinstance(asked, PathsInfo):
            raise Refusal(403, "ReadOnly", "a mirror is read only: nothing can be created or changed here")
        match asked:
            case Resolve(repository, revision):
                return await self._files.answer(request, asked, await self._at(repository, revision))
            case Info(repository, revision):
                at = await self._at(repository, revision or MAIN)
                _must_come(at, repository)
                row = hub_rows.model_row(repository, at, blobs=query.flag("blobs"))
                return web.json_response(hub_rows.expanded(row, query))
            case Tree(repository, revision):
                return self._tree(request, await self._whole(repository, revision), asked, query)
            case PathsInfo(repository, revision):
                at = await self._whole(repository, revision)
                paths, expand = named_paths(await request.read(), request.content_type)
                return web.json_response(hub_rows.path_rows(at, paths, expand=expand))
            case Commits(repository, revision):
                at = await self._whole(repository, revision)
                return web.json_response(hub_rows.commit_rows(await self._offers(repository), at))
            case Refs(repository):
                offers = await self._offers(repository)
                return web.json_response(
                    hub_rows.reference_rows(offers, pull_requests=query.flag("include_prs"))
                )
            case Search():
                rows = hub_rows.search_rows(await self._index.repositories(), query)
                size = query.limit("limit", usual=hub_rows.SEARCH_PAGE, most=hub_rows.SEARCH_PAGE_MOST)
                return self._page(request, rows, query, size, key="id")
            case WhoAmI():
                return _whoami(request)
            case OtherKind(what):
                raise not_found("RepoNotFound", f"this mirror has models only, no {what}")
            case Unknown():
                raise not_found("UnknownCall", "this is no call that a mirror answers")

    async def _offers(self, repository: str) -> Sequence[Offer]:
        return _known(repository, await self._index.repository(repository))

    async def _at(self, repository: str, revision: str) -> At:
        offers = await self._index.repository(repository)
        at = find(offers, revision)
        if at is None and self._pull.allows(repository):
            await self._pull.demand(repository, revision)
            offers = await self._index.repository(repository)
            at = find(offers, revision)
        if at is None:
            named = sorted({name for offer in _known(repository, offers) for name in offer.names})
            raise not_found(
                "RevisionNotFound",
                f"revision {revision!r} of {repository!r} is not on this mirror",
                f"here are {', '.join(named[:5]) or 'single commits only'}",
                choosing(repository, "--revision", revision),
            )
        return at

    async def _whole(self, repository: str, revision: str) -> At:
        """For listings. While nothing is whole there is nothing that may be listed: wait."""
        at = await self._at(repository, revision)
        _must_come(at, repository)
        if not at.whole:
            raise await self._files.coming(at.offers, at.commit)
        return at

    def _tree(self, request: web.Request, at: At, asked: Tree, query: Query) -> web.Response:
        expand = query.flag("expand")
        rows = hub_rows.tree_rows(at, asked.folder, recursive=query.flag("recursive"), expand=expand)
        if not rows and asked.folder:
            raise not_found("EntryNotFound", f"{asked.folder!r} is no folder of {asked.repository!r} here")
        most = hub_rows.TREE_PAGE_EXPANDED if expand else hub_rows.TREE_PAGE
        return self._page(request, rows, query, query.limit("limit", usual=most, most=most), key="path")

    def _page(
        self, request: web.Request, rows: Sequence[hub_rows.Row], query: Query, size: int, *, key: str
    ) -> web.Response:
        shown, cursor = hub_rows.page(rows, query.one("cursor"), size, key=key)
        if cursor is None:
            return web.json_response(shown)
        prefix, path = self._split(request)
        url = base_url(request.scheme, request.headers, prefix=prefix) + path
        return web.json_response(shown, headers={"Link": next_link(url, query, cursor)})


def _known(repository: str, offers: Sequence[Offer]) -> Sequence[Offer]:
    if not offers:
        raise not_found(
            "RepoNotFound", f"repository {repository!r} is not on this mirror", choosing(repository)
        )
    return offers


def _must_come(at: At, repository: str) -> None:
    """Something is whole here, or will be. Of a revision that failed clients are told that there is none:
    for any other answer they fall back to what they have, be it half a folder (H23)."""
    if at.whole or not all(offer.stuck for offer in at.offers):
        return
    stuck = at.offers[-1]
    path, why = min(stuck.stuck.items())
    raise not_found(
        "RevisionNotFound",
        f"nothing of {repository!r} is complete at this revision: {path}: {why}",
        retrying(stuck),
    )


def _whoami(request: web.Request) -> web.Response:
    """A mirror knows no accounts: any token may read. Programs that log in want to be told a name."""
    if not request.headers.get("Authorization"):
        raise Refusal(401, "Unauthorized", "no token was sent; this mirror needs none")
    token = {"displayName": "mirror", "role": "read"}
    said: dict[str, Any] = {
        "type": "user", "id": "mirror", "name": "mirror", "fullname": "llmgw mirror", "isPro": False,
        "orgs": [], "auth": {"type": "access_token", "accessToken": token},
    }  # fmt: skip
    return web.json_response(said)
