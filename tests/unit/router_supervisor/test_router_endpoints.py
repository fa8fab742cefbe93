"""M5: what an endpoint may look like, and what is said of one that does not."""

import pytest

from llmgw_kit.errors import InvalidRequest
from llmgw_router.core.endpoints import (
    StaticEndpoint,
    check_together,
    split_endpoint,
    static_endpoint,
    static_table,
)


def parsed(text: str) -> StaticEndpoint:
    endpoint_id, url, models = split_endpoint(text)
    return static_endpoint(endpoint_id, url, models)


GOOD = {
    "plain": ("a=http://h:1=m", ("a", "h", 1, "", ("m",), False)),
    "several models": ("a=http://h:1=m,n", ("a", "h", 1, "", ("m", "n"), False)),
    "blanks everywhere": (" a = http://h:1 = m , n ", ("a", "h", 1, "", ("m", "n"), False)),
    "trailing slashes": ("a=http://h:1///=m", ("a", "h", 1, "", ("m",), False)),
    "a path keeps its inside": ("a=http://h:1/x/y//=m", ("a", "h", 1, "/x/y", ("m",), False)),
    "only the first two = cut": ("a=http://h:1=m=q4,n", ("a", "h", 1, "", ("m=q4", "n"), False)),
    "slashes in a model": ("a=http://h:1=org/m", ("a", "h", 1, "", ("org/m",), False)),
    "http's own port": ("a=http://h=m", ("a", "h", 80, "", ("m",), False)),
    "https": ("a=https://h=m", ("a", "h", 443, "", ("m",), True)),
    "a dot at the end": ("a=http://h.example.:1=m", ("a", "h.example.", 1, "", ("m",), False)),
    "the longest part": ("a=http://%s:1=m" % ("h" * 63), ("a", "h" * 63, 1, "", ("m",), False)),
    "IPv6": ("a=http://[::1]:9=m", ("a", "::1", 9, "", ("m",), False)),
}


@pytest.mark.parametrize(("text", "expected"), GOOD.values(), ids=GOOD.keys())
def test_good(text: str, expected: tuple[object, ...]) -> None:
    got = parsed(text)
    assert (got.endpoint_id, got.host, got.port, got.base_path, got.models, got.tls) == expected
    assert (got.pool, got.weight, got.credential) == ("static", 1, None)


BAD = {
    "nothing": ("", "no URL and no model"),
    "only an id": ("a", "no URL and no model"),
    "no model part": ("a=http://h:1", "no model"),
    "empty models": ("a=http://h:1=", "names no model"),
    "only blanks for models": ("a=http://h:1=  ", "names no model"),
    "an empty name between commas": ("a=http://h:1=m,,n", "empty or unprintable model"),
    "a model twice": ("a=http://h:1=m,m", "names model m twice"),
    "empty id": ("=http://h:1=m", "id is empty"),
    "blank in the id": ("a b=http://h:1=m", "blanks"),
    "id that the activity map uses": ("epoch=http://h:1=m", "activity map"),
    "no scheme": ("a=h:1=m", "not http or https"),
    "scheme": ("a=ftp://h:1=m", "scheme 'ftp'"),
    "no host": ("a=http://:1=m", "no host"),
    "a part of the host is too long": ("a=http://%s.example:1=m" % ("h" * 64), "63"),
    "two dots in a row": ("a=http://h..example:1=m", "63"),
    "port too large": ("a=http://h:70000=m", "1 to 65535"),
    "port zero": ("a=http://h:0=m", "port 0"),
    "port is no number": ("a=http://h:x=m", "1 to 65535"),
    "half an IPv6 address": ("a=http://[::1=m", "cannot be read"),
    "query": ("a=http://h:1/?k=m", "query"),
    "fragment": ("a=http://h:1/#k=m", "query or fragment"),
    "blank in the URL": ("a=http://h :1=m", "blanks"),
}


@pytest.mark.parametrize(("text", "says"), BAD.values(), ids=BAD.keys())
def test_bad_says_what_was_expected(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match="expected") as caught:
        parsed(text)
    assert says in caught.value.text
    assert caught.value.next_steps


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed("a=http://me:s3cret@h:1=m")
    assert "s3cret" not in "\n".join(caught.value.lines())


def test_weight_below_one_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="weight 0"):
        static_endpoint("a", "http://h:1", ["m"], weight=0)


def test_one_id_for_two_endpoints_is_refused_with_both_named() -> None:
    with pytest.raises(InvalidRequest, match="id a is used twice") as caught:
        check_together([parsed("a=http://h:1=m"), parsed("b=http://h:2=m"), parsed("a=http://h:3=n")])
    assert "h:1" in caught.value.text
    assert "h:3" in caught.value.text


def test_the_table_has_a_row_an_endpoint_and_every_model_once() -> None:
    rows, models = static_table([parsed("a=http://h:1/p=m,n"), parsed("b=http://h:2=n")])
    assert [(row.endpoint_id, row.model, row.also_models, row.base_path) for row in rows] == [
        ("a", "m", ("n",), "/p"),
        ("b", "n", (), ""),
    ]
    assert [model.name for model in models] == ["m", "n"]
