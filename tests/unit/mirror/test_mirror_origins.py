"""Where a redirect may lead, and what is shown of a URL."""

import pytest

from llmgw_kit.errors import InvalidRequest
from llmgw_mirror.core.origins import REDIRECTS_MAX, BadRedirect, check_url, next_hop, origin_of, shown


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://h/a", "https://h:443/b?c", True),
        ("http://h/a", "http://H/b", True),
        ("https://h/a", "http://h/a", False),
        ("https://h/a", "https://h:8443/a", False),
        ("https://h/a", "https://sub.h/a", False),
        ("https://h./a", "https://h/a", True),
        ("http://[::1]:80/", "http://[::1]/", True),
    ],
)
def test_an_origin_is_scheme_host_and_port(one: str, other: str, same: bool) -> None:
    assert (origin_of(one) == origin_of(other)) is same


@pytest.mark.parametrize(
    ("location", "leads"),
    [
        ("/c?x=1", "https://h/c?x=1"),
        ("c", "https://h/a/c"),
        ("//cdn/x?sig=s", "https://cdn/x?sig=s"),
        ("https://cdn:8443/x", "https://cdn:8443/x"),
    ],
)
def test_a_redirect_keeps_its_query(location: str, leads: str) -> None:
    assert next_hop("https://h/a/b?q=1", location, hops=0) == leads


@pytest.mark.parametrize(
    ("location", "says"),
    [
        (None, "without saying where"),
        ("file:///etc/passwd", "file URL"),
        ("http://h/a", "plain http"),
        ("gopher://h/", "scheme 'gopher'"),
        ("https://user:secret@h/", "login"),
        ("https://h:99999/", "not a URL"),
    ],
)
def test_a_redirect_is_refused(location: str | None, says: str) -> None:
    with pytest.raises(BadRedirect, match=says) as refused:
        next_hop("https://h/a?sig=s", location, hops=0)
    assert "secret" not in refused.value.text
    assert "sig=" not in refused.value.text


def test_redirects_end() -> None:
    assert next_hop("https://h/a", "/b", hops=REDIRECTS_MAX - 1)
    with pytest.raises(BadRedirect, match="no more are followed"):
        next_hop("https://h/a", "/b", hops=REDIRECTS_MAX)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("h/a", "scheme ''"),
        ("http:///a", "no host"),
        ("http://h:x/a", "not a URL"),
        ("http://h:0/a", "port 0"),
        ("http://user:secret@h/a", "login"),
        ("http://h/a b", "blank"),
        ("http://h/a\nX: y", "control"),
        ("file://host/a", "host 'host'"),
        ("file:a", "no absolute path"),
        ("file:///a%00b", "no absolute path"),
    ],
)
def test_a_url_is_refused(url: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as refused:
        check_url(url, what="the URL")
    assert "secret" not in refused.value.text


@pytest.mark.parametrize(
    "url", ["http://h/a", "https://h:8/a?b=c#d", "file:///a/b", "file://localhost/a", "http://[::1]:9/x"]
)
def test_a_url_is_taken(url: str) -> None:
    check_url(url, what="the URL")


def test_what_is_shown_holds_no_secret() -> None:
    assert shown("https://u:p@h:1/a/b?X-Signature=s#f") == "https://h:1/a/b?…"
    assert shown("https://h/a") == "https://h/a"
    assert shown("file:///a/b") == "file:///a/b"


def test_a_url_that_is_none_is_shown_without_its_login_and_query() -> None:
    assert shown("https://ann:secret@[::1/w?X-Signature=secret") == "[::1/w"
