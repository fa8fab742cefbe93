import pytest

from llmgw_router.core import heads
from llmgw_router.core.paths import BadPath, split
from llmgw_router.core.routes import HOT

PATHS = {
    b"/": (b"/", b""),
    b"/v1/models": (b"/v1/models", b""),
    b"/v1/models/": (b"/v1/models", b""),
    b"//v1///models//": (b"/v1/models", b""),
    b"/./v1/./models/.": (b"/v1/models", b""),
    b"/a/../v1/models": (b"/v1/models", b""),
    b"/../../etc/passwd": (b"/etc/passwd", b""),
    b"/%2e%2e/%2E/v1": (b"/v1", b""),
    b"/a/%2e%2e%2fb": (b"/a/..%2Fb", b""),
    b"/v1/%6dodels": (b"/v1/models", b""),
    b"/v1/models/org%2fname": (b"/v1/models/org%2Fname", b""),
    b"/%252e%252e/x": (b"/%252e%252e/x", b""),
    b"/a%20b": (b"/a%20b", b""),
    b"/x?": (b"/x", b"?"),
    b"/x?a=/../%2e&b=//": (b"/x", b"?a=/../%2e&b=//"),
    b"/x?a#f": (b"/x", b"?a"),
    b"http://evil:22/v1/models?q": (b"/v1/models", b"?q"),
    b"https://evil": (b"/", b""),
    b"/http://x/y": (b"/http:/x/y", b""),
}


@pytest.mark.parametrize("target", PATHS)
def test_split(target: bytes) -> None:
    assert split(target) == PATHS[target]
    # Once is enough: what is normal stays as it is.
    path, _ = PATHS[target]
    assert split(path) == (path, b"")


@pytest.mark.parametrize(
    "target", [b"", b"*", b"x", b"/%", b"/%0", b"/%zz", b"/a%00", b"mailto:x", b"10.0.0.1:22"]
)
def test_targets_without_a_reading(target: bytes) -> None:
    with pytest.raises(BadPath):
        split(target)


def test_hot_paths_are_normal() -> None:
    for path in HOT:
        assert split(path) == (path, b"")


def test_no_secret_of_the_caller_is_an_ordinary_header() -> None:
    for name in (b"authorization", b"proxy-authorization", b"cookie", b"api-key", b"x-api-key"):
        assert heads.REQUEST[name] in (heads.REQ_PRIVATE, heads.REQ_DROP)


def test_hop_by_hop_headers_are_not_ordinary_in_either_direction() -> None:
    for name in (b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"):
        assert name in heads.REQUEST
        assert name in heads.RESPONSE


def test_connection_names_headers() -> None:
    assert heads.named_by_connection([b"close"]) == frozenset()
    assert heads.named_by_connection([b"Keep-Alive, X-A", b" x-b ,,x-A"]) == {b"x-a", b"x-b"}
    assert heads.without([b"X-A: 1", b"x-ab: 2", b"Y: x-a"], frozenset({b"x-a"})) == [b"x-ab: 2", b"Y: x-a"]


def test_lines_become_a_block() -> None:
    assert heads.block([]) == b""
    assert heads.block([b"A: 1", b"b: 2"]) == b"A: 1\r\nb: 2\r\n"


def test_names_are_known_in_any_case_and_ours_are_dropped() -> None:
    fields = heads.Fields(heads.REQUEST, heads.REQ_DROP)
    for _ in range(2):
        assert fields.kind(b"Authorization") == heads.REQ_PRIVATE
        assert fields.kind(b"AUTHORIZATION") == heads.REQ_PRIVATE
        assert fields.kind(b"X-LLMGW-Peer") == fields.kind(b"x-llmgw-") == heads.REQ_DROP
        assert fields.kind(b"x-llmg") == fields.kind(b"Accept") == heads.PLAIN
    assert fields.known[b"Authorization"] == heads.REQ_PRIVATE


def test_the_memory_of_names_is_bounded() -> None:
    fields = heads.Fields(heads.REQUEST, heads.REQ_DROP)
    for n in range(fields.MOST * 2):
        assert fields.kind(b"x-%d" % n) == heads.PLAIN
    assert len(fields.known) == fields.MOST
    assert fields.kind(b"Cookie") == heads.REQ_PRIVATE


@pytest.mark.parametrize(
    ("given", "stream"),
    [
        (None, False),
        (b"", False),
        (b"application/json", False),
        (b"text/event-stream", True),
        (b"Text/Event-Stream; charset=utf-8", True),
    ],
)
def test_event_streams_are_known_by_their_type(given: bytes | None, stream: bool) -> None:
    assert heads.is_event_stream(given) is stream


@pytest.mark.parametrize(
    ("value", "sane"),
    [
        (b"a", True),
        (b"A-1_b.c:2", True),
        (b"", False),
        (b"a b", False),
        (b"a\xff", False),
        (b"x" * 128, True),
        (b"x" * 129, False),
    ],
)
def test_request_ids(value: bytes, sane: bool) -> None:
    assert heads.is_sane_id(value) is sane
