"""URLs of upstreams: which are taken, where a redirect may lead, and who sees the credentials."""

from dataclasses import dataclass
from urllib.parse import unquote, urljoin, urlsplit

from llmgw_kit.errors import InvalidRequest, LlmgwError
from llmgw_mirror.core.bounds import check_url_text

SCHEMES = ("http", "https", "file")
#: Hops to follow; the Hub needs two (its resolve cache, then a CDN).
REDIRECTS_MAX = 10
_PORTS = {"http": 80, "https": 443}


#: A redirect is upstream's to mend.
ASK_UPSTREAM = "name the URL that the file is at in the end, or have upstream mend its redirect"


class BadRedirect(LlmgwError):
    """A redirect that must not be followed."""

    code_default = "bad_redirect"


def check_url(url: str, *, what: str) -> None:
    """Raises InvalidRequest saying what was expected."""
    check_url_text(url, what=what)
    if any(ord(character) <= 0x20 or ord(character) == 0x7F for character in url):
        raise InvalidRequest(
            f"{what} holds a blank or a control character: {shown(url)!r}",
            next_steps=["quote it: a blank is %20"],
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as e:
        raise InvalidRequest(
            f"{what} {shown(url)!r} is not a URL: {e}", next_steps=["give it as https://HOST/PATH"]
        ) from None
    if parts.scheme not in SCHEMES:
        raise InvalidRequest(
            f"{what} {shown(url)!r} has the scheme {parts.scheme!r}; expected http, https or file",
            next_steps=["give the URL that the file itself is at"],
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise InvalidRequest(
                f"{what} {url!r} names the host {parts.netloc!r}; a file URL has none",
                next_steps=["three slashes: file:///folder/file"],
            )
        if not parts.path.startswith("/") or "\0" in unquote(parts.path):
            raise InvalidRequest(
                f"{what} {url!r} has no absolute path", next_steps=["three slashes: file:///folder/file"]
            )
        return
    if not parts.hostname:
        raise InvalidRequest(
            f"{what} {shown(url)!r} has no host", next_steps=["give it as https://HOST/PATH"]
        )
    if port == 0:
        raise InvalidRequest(
            f"{what} {shown(url)!r} has port 0",
            next_steps=["give the port upstream listens on, or none for the usual one"],
        )
    if parts.username is not None or parts.password is not None:
        # It would be stored, listed and logged; settings are masked everywhere.
        raise InvalidRequest(
            f"{what} {shown(url)!r} carries a login",
            next_steps=["put a token for that host into the setting upstream_tokens instead"],
        )


@dataclass(frozen=True)
class Origin:
    """Who a credential belongs to: all three must be the same (RFC 6454 section 4)."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = _PORTS.get(self.scheme) == self.port
        return f"{self.scheme}://{host}" if usual else f"{self.scheme}://{host}:{self.port}"


def origin_of(url: str) -> Origin:
    """Of an http or https URL."""
    parts = urlsplit(url)
    return Origin(parts.scheme, (parts.hostname or "").rstrip("."), parts.port or _PORTS[parts.scheme])


def next_hop(url: str, location: str | None, *, hops: int) -> str:
    """Where a redirect from `url` leads; `hops` were followed before. Raises BadRedirect.

    A relative Location keeps its query (some clients lose it, and a CDN's signature with it)."""
    if not location:
        raise BadRedirect(f"{shown(url)} redirects without saying where", next_steps=[ASK_UPSTREAM])
    if hops >= REDIRECTS_MAX:
        raise BadRedirect(
            f"{shown(url)} is the end of {hops} redirects; no more are followed", next_steps=[ASK_UPSTREAM]
        )
    target = urljoin(url, location)
    try:
        check_url(target, what="a redirect's target")
    except InvalidRequest as e:
        raise BadRedirect(f"{shown(url)} redirects badly: {e.text}", next_steps=[ASK_UPSTREAM]) from None
    scheme = urlsplit(target).scheme
    if scheme == "file":
        raise BadRedirect(
            f"{shown(url)} redirects to a file URL, which only an operator may name",
            next_steps=[ASK_UPSTREAM],
        )
    if urlsplit(url).scheme == "https" and scheme == "http":
        raise BadRedirect(
            f"{shown(url)} redirects from https to plain http ({shown(target)})", next_steps=[ASK_UPSTREAM]
        )
    return target


def shown(url: str) -> str:
    """A URL for logs, tables and errors: no login, no query (a signed one is a credential)."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.split("?")[0].rpartition("@")[2][:200]
    if parts.scheme == "file":
        return url
    place = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{place}{parts.path}" + ("?…" if parts.query else "")


def without_query(url: str) -> str:
    """What of a URL may travel: a query may be a signature, and a signature is a credential."""
    return url.partition("#")[0].partition("?")[0]
