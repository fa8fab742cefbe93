"""Addresses and queries of the Hub's protocol, as its clients spell them."""

import pytest

from llmgw_kit.errors import InvalidRequest
from llmgw_mirror.adapters.hub_links import base_url, next_link
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
    client_generation,
    hub_request,
)


@pytest.mark.parametrize(
    ("path", "means"),
    [
        ("/api/models", Search()),
        ("/api/models/", Search()),
        ("/api/whoami-v2", WhoAmI()),
        ("/api/models/gpt2", Info("gpt2", None)),
        ("/api/models/org/m", Info("org/m", None)),
        ("/api/models/org%2Fm", Info("org/m", None)),
        ("/api/models/gpt2/revision/main", Info("gpt2", "main")),
        ("/api/models/org/m/revision/refs%2Fpr%2F1", Info("org/m", "refs/pr/1")),
        ("/api/models/org/m/tree/main", Tree("org/m", "main", "")),
        ("/api/models/org/m/tree/main/", Tree("org/m", "main", "")),
        ("/api/models/org/m/tree/main/sub%2Fdeeper", Tree("org/m", "main", "sub/deeper")),
        ("/api/models/org/m/tree/main/sub/deeper", Tree("org/m", "main", "sub/deeper")),
        ("/api/models/gpt2/tree/main", Tree("gpt2", "main", "")),
        ("/api/models/org/m/paths-info/main", PathsInfo("org/m", "main")),
        ("/api/models/org/m/refs", Refs("org/m")),
        ("/api/models/gpt2/refs", Refs("gpt2")),
        ("/api/models/org/m/commits/main", Commits("org/m", "main")),
        ("/api/models/org/m/xet-read-token/main", Unknown()),
        ("/api/agent-harnesses", Unknown()),
        ("/api/", Unknown()),
        ("/api/datasets/org/m", OtherKind("datasets")),
        ("/org/m/resolve/main/a/b.bin", Resolve("org/m", "main", "a/b.bin")),
        ("/org/m/resolve/main/a%20b/%C3%A4.bin", Resolve("org/m", "main", "a b/\u00e4.bin")),
        ("/org/m/resolve/main/a%2Fb.bin", Resolve("org/m", "main", "a/b.bin")),
        ("/org/m/resolve/refs%2Fpr%2F1/a", Resolve("org/m", "refs/pr/1", "a")),
        ("/org/m/resolve/refs/pr/1/a", Resolve("org/m", "refs/pr/1", "a")),
        ("/org/m/resolve/refs/a", Resolve("org/m", "refs", "a")),
        ("/gpt2/resolve/main/config.json", Resolve("gpt2", "main", "config.json")),
        ("/org%2Fm/resolve/main/config.json", Resolve("org/m", "main", "config.json")),
        ("/org/m/resolve/main/resolve/x", Resolve("org/m", "main", "resolve/x")),
        ("/datasets/org/d/resolve/main/a", OtherKind("datasets")),
        ("/spaces/s/resolve/main/a", OtherKind("spaces")),
        ("/org/m/resolve/main", Unknown()),
        ("/org/m/blob/main/a", Unknown()),
        ("/a/b/c/resolve/main/a", Unknown()),
        ("/", Unknown()),
    ],
)
def test_addresses(path: str, means: HubRequest) -> None:
    assert hub_request(path) == means


@pytest.mark.parametrize(
    "path",
    [
        "/org/m/resolve/main/..%2F..%2Fx", "/org/m/resolve/main/../x", "/org/m/resolve/main/a//b",
        "/org/m/resolve/main/%00", "/org/m/resolve/main/%ff", "/org/m/resolve/%ff/a", "/api/models/%ff",
        "/org/m/resolve/main/a%5Cb", "/org/m/resolve/main/C:", "/api/models/org/m/tree/main/..%2Fx",
        "/org/m/resolve/main/" + "x" * 300,
    ],
)  # fmt: skip
def test_hostile_addresses_are_refused(path: str) -> None:
    """H17: by name, before anything is looked up."""
    with pytest.raises(InvalidRequest):
        hub_request(path)


def test_fields_of_a_query() -> None:
    query = Query.of("expand=a&expand%5B%5D=b&recursive=True&blobs=false&limit=0&empty=&n=-5&big=99999999999")
    assert query.every("expand") == ["a", "b"]
    assert [query.flag(name) for name in ("recursive", "blobs", "empty", "none")] == [
        True,
        False,
        False,
        False,
    ]
    assert (query.one("empty"), query.one("none")) == ("", None)
    assert [query.limit(name, usual=7, most=9) for name in ("limit", "n", "none", "recursive")] == [
        7,
        7,
        7,
        7,
    ]
    assert Query.of("n=8").limit("n", usual=7, most=9) == 8
    assert Query.of("n=1000").limit("n", usual=7, most=9) == 9
    with pytest.raises(InvalidRequest, match="cannot be read"):
        Query.of("&".join(["a=1"] * 10_001))


@pytest.mark.parametrize(
    ("agent", "generation"),
    [
        ("unknown/None; hf_hub/2.4.0; python/3.11", 2),
        ("transformers/4.57; hf_hub/0.36.0; python/3.11", 0),
        ("hf_hub/10.1", 10),
        ("not_hf_hub/2", None),
        ("aria2/1.36", None),
        ("", None),
        (None, None),
    ],
)
def test_generations_of_the_client(agent: str | None, generation: int | None) -> None:
    assert client_generation(agent) == generation


@pytest.mark.parametrize(
    ("headers", "url"),
    [
        ({"Host": "m:81"}, "http://m:81/p"),
        ({"Host": "[::1]:81"}, "http://[::1]:81/p"),
        ({"Host": "m", "X-Forwarded-Proto": "https, http"}, "https://m/p"),
        ({"Host": "m", "X-Forwarded-Proto": "javascript"}, "http://m/p"),
        ({"Host": "m", "X-Forwarded-Host": "h.test, m"}, "http://h.test/p"),
        ({"Host": "m", "X-Forwarded-Prefix": "/a/b/"}, "http://m/a/b/p"),
    ],
)
def test_the_callers_own_base_url(headers: dict[str, str], url: str) -> None:
    assert base_url("http", headers, prefix="/p") == url


@pytest.mark.parametrize("host", ["", "a b", "a/b", "a>", "m:81:82", "m\r\nX: y"])
def test_hosts_that_are_none(host: str) -> None:
    with pytest.raises(InvalidRequest):
        base_url("http", {"Host": host}, prefix="")


def test_a_link_keeps_everything_but_the_cursor() -> None:
    query = Query.of("expand%5B%5D=a&cursor=old&limit=3&search=a+b")
    assert next_link("http://m/x", query, "n&ew") == (
        '<http://m/x?expand%5B%5D=a&limit=3&search=a+b&cursor=n%26ew>; rel="next"'
    )
