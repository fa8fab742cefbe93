"""What went wrong with a request, without its URL: a signed one is a credential, and the client's own words
for an error have all of it."""

from urllib.parse import unquote, unquote_plus, urlsplit

import aiohttp

from llmgw_mirror.core.origins import shown

WHY_MAX_CHARS = 300
#: Shorter values of a query, such as a 1 or an 80, are no secrets, and stand in many a harmless word.
SECRET_MIN_CHARS = 6


def why(e: BaseException, url: str) -> str:
    """The kind of error, what status it is about and what it says; never the URL that was asked."""
    if isinstance(e, aiohttp.InvalidURL):
        return type(e).__name__
    if isinstance(e, aiohttp.ClientResponseError):
        # Its own text ends with the URL.
        status = f" {e.status}" if e.status else ""
        return f"{type(e).__name__}{status}: {without_secrets(e.message, url)}"
    if isinstance(e, aiohttp.ServerDisconnectedError) and not isinstance(e.message, str):
        # It would be an answer's whole head, with a redirect's target.
        return "the server closed the connection"
    return without_secrets(str(e), url) or type(e).__name__


def without_secrets(text: str, url: str) -> str:
    """What somebody said, who may have repeated what was asked of them: cut, on one line, and without what
    the URL's query holds."""
    query = urlsplit(url).query
    values = [pair.partition("=")[2] or pair for pair in query.split("&")]
    for secret in (url, query, *values):
        # Longest first: no piece of one is left when a shorter one in it is taken out.
        for form in sorted({secret, unquote(secret), unquote_plus(secret)}, key=len, reverse=True):
            if len(form) >= SECRET_MIN_CHARS:
                text = text.replace(form, shown(url) if secret is url else "…")
    return " ".join(text.split())[:WHY_MAX_CHARS]
