"""Pages of a list, linked by the server (RFC 8288): how far they are followed.

A link may point to itself, in a circle, or to somebody else's server, and clients that follow it blindly
hang for ever or show a stranger their token (H15)."""

import re
from collections.abc import Collection
from urllib.parse import urljoin

from llmgw_kit.errors import InvalidRequest
from llmgw_mirror.core.origins import check_url, origin_of, shown

#: Longest header that is looked at.
LINK_MAX_CHARS = 16_384
_LINK = re.compile(r"<([^<>]*)>([^<]*)")
_NEXT = re.compile(r';\s*rel\s*=\s*(?:"[^"]*\bnext\b[^"]*"|next\b)', re.IGNORECASE)


class BadPage(ValueError):
    """The next page is not one to ask for."""


def next_page(link: str | None, *, here: str, visited: Collection[str], most: int) -> str | None:
    """None: this was the last one. `visited`: pages asked for, this one too; at most `most`.

    Raises BadPage."""
    if not link:
        return None
    found = next((m[1] for m in _LINK.finditer(link[:LINK_MAX_CHARS]) if _NEXT.search(m[2])), None)
    if found is None:
        return None
    target: str = urljoin(here, found.strip())
    try:
        check_url(target, what="the next page's URL")
    except InvalidRequest as e:
        raise BadPage(e.text) from None
    if target.startswith("file:") or origin_of(target) != origin_of(here):
        raise BadPage(f"the next page is at another server ({shown(target)})")
    if target in visited:
        raise BadPage("the next page is one that was read already")
    if len(visited) >= most:
        raise BadPage(f"the list does not end after {most} pages")
    return target
