"""Where a client believes that it talks to, and what it sends in a body."""

import json
import re
from collections.abc import Mapping
from urllib.parse import urlencode

from llmgw_kit.errors import InvalidRequest
from llmgw_mirror.core.hub_requests import Query

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}(?::\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::\d{1,5})?")
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]{1,100}){0,8}/?")


def base_url(scheme: str, headers: Mapping[str, str], *, prefix: str) -> str:
    """The caller's own base URL, without a slash at its end: a link to another name of this mirror may be
    one that the caller cannot reach. What a proxy in front says it took away is put back. Raises
    InvalidRequest."""
    told = headers.get("X-Forwarded-Proto", scheme).split(",")[0].strip().lower()
    host = headers.get("X-Forwarded-Host", headers.get("Host", "")).split(",")[0].strip()
    before = headers.get("X-Forwarded-Prefix", "").split(",")[0].strip()
    if not _HOST.fullmatch(host) or not _PREFIX.fullmatch(before):
        raise InvalidRequest(
            "the Host of this request, or what a proxy says of it, is no host",
            next_steps=["send Host as HOST or HOST:PORT, and see what a proxy before the mirror adds"],
        )
    return f"{told if told in ('http', 'https') else scheme}://{host}{before.rstrip('/')}{prefix}"


def next_link(url: str, query: Query, cursor: str) -> str:
    """A `Link` to the page after this one: everything that was asked stays."""
    kept = [(name, value) for name, value in query.fields if name != "cursor"]
    return f'<{url}?{urlencode([*kept, ("cursor", cursor)])}>; rel="next"'


def named_paths(body: bytes, content_type: str) -> tuple[list[str], bool]:
    """The paths that a body asks about, and whether more than their names is wanted: JSON, or a form that
    repeats `paths`. Raises InvalidRequest."""
    try:
        text = body.decode()
        if content_type != "application/json":
            form = Query.of(text)
            return form.every("paths"), form.flag("expand")
        said = json.loads(text)
        paths = said.get("paths", [])
        paths = [paths] if isinstance(paths, str) else paths
        if not all(isinstance(path, str) for path in paths):
            raise TypeError
        return list(paths), said.get("expand") is True
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise InvalidRequest(
            'the body names no paths; expected JSON such as {"paths": ["config.json"]}, or a form',
            next_steps=["name the paths that are asked about"],
        ) from None
