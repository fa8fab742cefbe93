"""A registry that speaks the Hub's read protocol, on two origins of loopback, and misbehaves as told.

Real huggingface_hub clients can talk to it. Weights are redirected to the second origin (the CDN), which
refuses whoever shows it a token, as S3 does; plain files by a relative redirect that carries a query.

    async with hub_registry() as hub:
        repo = hub.add("org/m", {"config.json": b"{}", "model.safetensors": weights})
        hub.on("/org/m/resolve/.../model.safetensors", status(503))   # the next request of that path
        hub.base                                                      # the base URL, with its prefix

Acts are those of scripted.py: they see `x.content`, `x.etag`, `x.request` here too. `hub.acts` is for
the next requests whatever their path, `hub.on(path, …)` for one path, `hub.on_content(path, …)` for the
bytes of one file wherever they are served from.
"""

import asyncio
import json
import re
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote, unquote

from .hub_content import HubFile, HubRepo
from .hub_exchange import HubExchange, HubRequest
from .scripted import Act, Exchange, Upstream, honest

__all__ = ["HubExchange", "HubFile", "HubRegistry", "HubRepo", "HubRequest", "hub_registry"]


@dataclass
class HubRegistry(Upstream):
    """See the module. Everything may be changed between two requests."""

    prefix: str = ""
    cdn_port: int = 0
    repos: dict[str, HubRepo] = field(default_factory=dict)
    #: Known tokens; None: any is good.
    tokens: set[str] | None = None
    #: Put among the rows of every search, as they are.
    extra_results: list[Any] = field(default_factory=list)
    search_page_rows: int = 20
    tree_page_rows: int = 1000
    #: False: weights are answered by the registry itself.
    weights_on_cdn: bool = True
    plain_redirected: bool = True
    #: Followed blindly by some clients; a test may point it anywhere.
    next_link: str | None = None
    scripts: dict[str, deque[Act]] = field(default_factory=lambda: defaultdict(deque))
    content_scripts: dict[str, deque[Act]] = field(default_factory=lambda: defaultdict(deque))

    @property
    def base(self) -> str:
        """The base URL; `url(path)` leaves the prefix out."""
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    def add(self, repo_id: str, files: Mapping[str, bytes], **fields: Any) -> HubRepo:
        """A repository with one commit on main; `fields` go into its rows."""
        repo = self.repos[repo_id] = HubRepo(repo_id, fields)
        repo.commit(files)
        return repo

    def on(self, path: str, *acts: Act) -> None:
        """For the next requests of this path (unquoted, without prefix and query)."""
        self.scripts[path].extend(acts)

    def on_content(self, path: str, *acts: Act) -> None:
        """For the next times that bytes of the file are served, at whichever origin; by its path in the
        repository."""
        self.content_scripts[path].extend(acts)

    def seen(self, pattern: str) -> list[HubRequest]:
        """Requests whose path matches."""
        return [r for r in self.requests if isinstance(r, HubRequest) and re.search(pattern, r.path)]

    async def serve_one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, on_cdn: bool
    ) -> None:
        try:
            request = await _request(reader, self.prefix, on_cdn=on_cdn)
            self.requests.append(request)
            act: Act = honest_cdn if on_cdn else honest_hub
            if self.scripts.get(request.path):
                act = self.scripts[request.path].popleft()
            elif request.path in self.acts_on:
                act = self.acts_on.pop(request.path)
            elif self.acts:
                act = self.acts.popleft()
            exchange = HubExchange(self, request, writer)
            exchange.file = _file_of(exchange)
            await act(exchange)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client ended it
        finally:
            writer.close()


async def _request(reader: asyncio.StreamReader, prefix: str, *, on_cdn: bool) -> HubRequest:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = lines[0].split(" ", 2)
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
    }
    raw, _, query = target.partition("?")
    if not on_cdn:
        raw = raw.removeprefix(prefix)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return HubRequest(
        unquote(raw), headers, method, raw, parse_qs(query, keep_blank_values=True), body, on_cdn=on_cdn
    )


def _file_of(x: HubExchange) -> HubFile | None:
    """For acts in the place of an honest answer."""
    if x.asked.on_cdn:
        return _by_sha(x.hub, x.asked.path.rpartition("/")[2])
    found = _resolve_target(x)
    return found[2] if isinstance(found, tuple) else None


def _by_sha(hub: HubRegistry, sha256: str) -> HubFile | None:
    every = (f for repo in hub.repos.values() for files in repo.commits.values() for f in files.values())
    return next((file for file in every if file.sha256 == sha256), None)


# The API.


async def honest_hub(x: Exchange) -> None:
    """As the Hub answers."""
    assert isinstance(x, HubExchange)
    if x.hub.tokens is not None and x.asked.token is not None and x.asked.token not in x.hub.tokens:
        await x.refuse(401, "Invalid credentials in Authorization header")
    elif x.asked.path == "/api/models":
        await _search(x)
    elif x.asked.path.startswith("/api/models/"):
        await _api(x)
    elif x.asked.path.startswith("/api/resolve-cache/models/"):
        await _bytes(x)
    elif "/resolve/" in x.asked.path:
        await _resolve(x)
    else:
        await x.refuse(404, "Not found")


async def _search(x: HubExchange) -> None:
    words = " ".join(x.asked.query.get("search", [])).lower()
    full = x.asked.flag("full") or "expand" in x.asked.query or "expand[]" in x.asked.query
    rows = [
        r.search_row(full=full) for r in x.hub.repos.values() if words in r.id.lower()
    ] + x.hub.extra_results
    size = min(int(x.asked.query.get("limit", ["1000"])[-1]), x.hub.search_page_rows)
    await _page(x, rows, size)


async def _page(x: HubExchange, rows: list[Any], size: int) -> None:
    start = int(x.asked.query.get("cursor", ["0"])[-1])
    shown, link = rows[start : start + size], x.hub.next_link
    if link is None and start + size < len(rows):
        kept = [(k, v) for k, vs in x.asked.query.items() if k != "cursor" for v in vs]
        query = "&".join(f"{quote(k)}={quote(v)}" for k, v in [*kept, ("cursor", str(start + size))])
        link = f"{x.hub.base}{x.asked.raw}?{query}"
    if link is None:
        await x.json(shown)
    else:
        await x.json(shown, Link=f'<{link}>; rel="next"')


async def _api(x: HubExchange) -> None:
    """`/api/models/{repo}` and what lies below it; the revision is one quoted segment."""
    parts = [unquote(part) for part in x.asked.raw.removeprefix("/api/models/").split("/")]
    repo, rest = _repo(x.hub, parts)
    if repo is None or not _may_see(x, repo):
        await _no_repo(x)
        return
    action = rest[0] if rest else "revision"
    if action == "refs":
        said = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": c} for n, c in repo.branches.items()]
        await x.json({"branches": said, "tags": [], "converts": []})
        return
    revision = rest[1] if len(rest) > 1 else "main"
    commit = repo.resolve(revision)
    if commit is None:
        await x.refuse(404, f"Invalid rev id: {quote(revision)}", "RevisionNotFound")
    elif action == "revision":
        await x.json(repo.info(commit, blobs=x.asked.flag("blobs")))
    elif action == "tree":
        under = "/".join(rest[2:])
        files = [f for p, f in repo.commits[commit].items() if not under or p.startswith(under + "/")]
        await _page(x, [f.tree_row() for f in files] + repo.extra_rows, x.hub.tree_page_rows)
    elif action == "paths-info":
        wanted = _wanted_paths(x.asked)
        await x.json([f.tree_row() for p, f in repo.commits[commit].items() if p in wanted])
    else:
        await x.refuse(404, "Not found")


def _wanted_paths(request: HubRequest) -> list[str]:
    if "json" in request.headers.get("content-type", ""):
        return list(json.loads(request.body)["paths"])
    return [value for name, value in parse_qsl(request.body.decode()) if name == "paths"]


def _repo(hub: HubRegistry, parts: list[str]) -> tuple[HubRepo | None, list[str]]:
    for count in (2, 1):
        name = "/".join(parts[:count])
        if name in hub.repos:
            return hub.repos[name], parts[count:]
    return None, []


def _may_see(x: HubExchange, repo: HubRepo) -> bool:
    return not repo.private or (repo.granted is not None and x.asked.token in repo.granted)


async def _no_repo(x: HubExchange) -> None:
    await x.refuse(401 if x.asked.token is None else 404, "Repository not found", "RepoNotFound")


# The bytes.


def _resolve_target(x: HubExchange) -> tuple[HubRepo, str, HubFile] | str:
    """Repository, commit, file; or the code of what is missing."""
    raw = x.asked.raw.removeprefix("/api/resolve-cache/models/")
    if raw != x.asked.raw:
        parts = [unquote(part) for part in raw.split("/")]
        repo, rest = _repo(x.hub, parts)
    elif "/resolve/" in raw:
        repo_part, _, rest_part = raw.lstrip("/").partition("/resolve/")
        repo, rest = x.hub.repos.get(unquote(repo_part)), [unquote(part) for part in rest_part.split("/")]
    else:
        return "RepoNotFound"
    if repo is None:
        return "RepoNotFound"
    commit = repo.resolve(rest[0]) if rest else None
    if commit is None:
        return "RevisionNotFound"
    file = repo.commits[commit].get("/".join(rest[1:]))
    return "EntryNotFound" if file is None else (repo, commit, file)


async def _resolve(x: HubExchange) -> None:
    found = _resolve_target(x)
    if found == "RepoNotFound" or (isinstance(found, tuple) and not _may_see(x, found[0])):
        await _no_repo(x)
        return
    if isinstance(found, str):
        await x.refuse(404, "Entry not found" if found == "EntryNotFound" else "Invalid rev id", found)
        return
    repo, commit, file = found
    if repo.granted is not None and x.asked.token not in repo.granted:
        await x.refuse(
            401 if x.asked.token is None else 403, f"Access to model {repo.id} is restricted", "GatedRepo"
        )
        return
    x.extra = {"X-Repo-Commit": commit}
    said: dict[str, str | int] = {"X_Linked_Size": len(file.content), "X_Linked_ETag": file.etag}
    if file.lfs and x.hub.weights_on_cdn:
        to = f"http://127.0.0.1:{x.hub.cdn_port}/lfs/{file.sha256}?signature=good"
        body = b"Found. Redirecting"
        await x.head(302, Location=to, Content_Length=len(body), **said)
        await x.send(body)
    elif not file.lfs and x.hub.plain_redirected:
        quoted = "/".join(quote(part, safe="") for part in file.path.split("/"))
        cache = f"{x.hub.prefix}/api/resolve-cache/models/{repo.id}/{commit}"
        to = f"{cache}/{quoted}?etag={quote(file.etag, safe='')}"
        body = b"Temporary Redirect"
        await x.head(307, Location=to, Content_Length=len(body), **said)
        await x.send(body)
    else:
        await _bytes(x)


async def _bytes(x: HubExchange) -> None:
    found = _resolve_target(x)
    if isinstance(found, str):
        await x.refuse(404, "Entry not found", found)
        return
    x.file, x.extra = found[2], {"X-Repo-Commit": found[1], "Accept-Ranges": "bytes"}
    await _content(x)


async def honest_cdn(x: Exchange) -> None:
    """Bytes for whoever has a signature and nothing else."""
    assert isinstance(x, HubExchange)
    if "authorization" in x.request.headers:
        await x.refuse(400, "Only one auth mechanism allowed")
    elif x.asked.query.get("signature") != ["good"]:
        await x.refuse(403, "Missing signature")
    elif x.file is None:
        await x.refuse(404, "NoSuchKey")
    else:
        await _content(x)


async def _content(x: HubExchange) -> None:
    assert x.file is not None
    script = x.hub.content_scripts.get(x.file.path)
    if script and x.asked.method == "GET":
        await script.popleft()(x)
    elif _hub_range(x):
        await _ranged(x)
    else:
        await honest(x)


def _hub_range(x: HubExchange) -> re.Match[str] | None:
    """A closed range, as HfFileSystem and parallel fetches ask for."""
    return re.fullmatch(r"bytes=(\d+)-(\d+)", x.request.headers.get("range", ""))


async def _ranged(x: HubExchange) -> None:
    match, size = _hub_range(x), len(x.content)
    assert match is not None
    first, last = int(match[1]), min(int(match[2]), size - 1)
    if first >= size:
        await x.head(416, Content_Range=f"bytes */{size}", Content_Length=0)
        return
    await x.head(
        206, Content_Length=last + 1 - first, Content_Range=f"bytes {first}-{last}/{size}", ETag=x.etag
    )
    await x.send(x.content[first : last + 1])


@asynccontextmanager
async def hub_registry(*, prefix: str = "") -> AsyncIterator[HubRegistry]:
    """On two ports of the system's; `prefix`, such as "/hub", begins the base URL's path."""
    made = HubRegistry(prefix=prefix)
    hub = await asyncio.start_server(lambda r, w: made.serve_one(r, w, on_cdn=False), "127.0.0.1", 0)
    cdn = await asyncio.start_server(lambda r, w: made.serve_one(r, w, on_cdn=True), "127.0.0.1", 0)
    made.port, made.cdn_port = (server.sockets[0].getsockname()[1] for server in (hub, cdn))
    try:
        yield made
    finally:
        made.over.set()
        hub.close()
        cdn.close()
        await asyncio.sleep(0)
