"""Keys: what they look like, what they may do, and how a worker takes them over (W03, W04, W37)."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.core.keys import PREFIX, SLICE, KeyRow, digest_of, has_expired, key_of, may_use, sliced
from llmgw_router.relay.access import NO_KEY, Access, is_guarded
from llmgw_router.relay.ipc import KeysUpdate
from llmgw_router.supervisor.key_book import KeyBook

GOOD = "sk-llmgw-good"


def row(key: str = GOOD, **more: Any) -> KeyRow:
    return KeyRow(digest=digest_of(key.encode()), key_id=f"id-of-{key[-4:]}", **more)


def asking(*lines: bytes) -> Any:
    return SimpleNamespace(private=list(lines) or None)


def access(*rows: KeyRow) -> Access:
    made = Access(required=True)
    made.update(KeysUpdate(whole=True, keys=rows))
    return made


def test_a_key_is_long_plain_and_of_its_own_chance() -> None:
    one, other = key_of(bytes(range(32))), key_of(bytes(range(1, 33)))
    assert one != other
    assert one.startswith(PREFIX)
    assert len(one) == len(PREFIX) + 43
    assert set(one) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


def test_a_row_shows_neither_digest_nor_key() -> None:
    assert repr(row()) == "<key id-of-good>"


@pytest.mark.parametrize(
    "line",
    [
        b"Authorization: Bearer " + GOOD.encode(),
        b"authorization: bearer   " + GOOD.encode() + b"  ",
        b"X-Api-Key: " + GOOD.encode(),
        b"api-key: " + GOOD.encode(),
    ],
)
def test_a_key_is_taken_from_any_of_its_places_twice(line: bytes) -> None:
    here = access(row())
    assert here.check(asking(b"cookie: a=b", line)) == row()
    assert here.check(asking(b"cookie: a=b", line)) == row(), "remembered"


@pytest.mark.parametrize(
    "lines",
    [
        (),
        (b"Authorization: " + GOOD.encode(),),
        (b"Authorization: Basic " + GOOD.encode(),),
        (b"Authorization: Bearer",),
        (b"Authorization: Bearer " + GOOD.encode()[:-1],),
        (b"Cookie: " + GOOD.encode(),),
        (b"Authorization: Bearer " + digest_of(GOOD.encode()),),
    ],
)
def test_one_refusal_for_all_that_is_not_a_good_key_w03(lines: tuple[bytes, ...]) -> None:
    assert access(row()).check(asking(*lines)) is NO_KEY


def test_of_several_credentials_the_first_good_one_counts() -> None:
    other = b"x-api-key: sk-ant-from-elsewhere"
    good = b"authorization: Bearer " + GOOD.encode()
    assert access(row()).check(asking(other, good)) == row()
    assert access(row()).check(asking(good, other)) == row()


def test_an_expired_key_beside_a_good_one_is_no_obstacle_and_the_first_good_one_stays_the_first() -> None:
    """ADR 0027: whoever sent it has it, whatever else they sent."""
    old, first, second = (f"sk-llmgw-{name}" for name in ("expired", "first", "second"))
    here = access(row(old, expires_unix_s=1.0), row(first), row(second, expires_unix_s=4e9))
    line = {key: b"authorization: Bearer " + key.encode() for key in (old, first, second)}
    for _ in range(2):
        assert here.check(asking(line[old])) is NO_KEY
        assert here.check(asking(line[old], line[second])) == row(second, expires_unix_s=4e9)
        assert here.check(asking(line[second], line[old])) == row(second, expires_unix_s=4e9)
        assert here.check(asking(line[first], line[second])) == row(first), (
            "also where only the other is known"
        )
        assert here.check(asking(b"cookie: a=b", line[old])) is NO_KEY


def test_expiry_is_looked_at_with_each_use_also_of_a_remembered_key() -> None:
    line = b"api-key: " + GOOD.encode()
    here = access(row(expires_unix_s=4e9))
    assert here.check(asking(line)) == row(expires_unix_s=4e9)
    here.update(KeysUpdate(whole=False, keys=(row(expires_unix_s=1.0),)))
    assert here.check(asking(line)) is NO_KEY
    assert has_expired(row(expires_unix_s=5.0), 5.0)
    assert not has_expired(row(expires_unix_s=5.0), 4.9)


def test_a_revoked_key_is_forgotten_with_what_was_remembered_of_it() -> None:
    here, line = access(row()), b"api-key: " + GOOD.encode()
    assert here.check(asking(line)) == row()
    here.update(KeysUpdate(whole=False, gone=(row().digest,)))
    assert here.check(asking(line)) is NO_KEY


def test_before_keys_are_loaded_and_long_after_nobody_is_called_a_stranger() -> None:
    here, line = Access(required=True), b"api-key: " + GOOD.encode()
    refusal = here.check(asking(line))
    assert isinstance(refusal, tuple)
    assert (refusal[0].status, refusal[0].code) == (503, "router_starting")
    here.update(KeysUpdate(whole=True, keys=(row(),)))
    here.update(KeysUpdate(whole=False, stale="away since noon"))
    refusal = here.check(asking(line))
    assert isinstance(refusal, tuple)
    assert (refusal[0].status, refusal[0].code, refusal[1]) == (503, "keys_unavailable", "away since noon")
    here.update(KeysUpdate(whole=False))
    assert here.check(asking(line)) == row(), "an empty change says that all the rest is still true"


def test_a_whole_set_counts_when_its_last_part_has_come() -> None:
    here = access(row("sk-llmgw-old1"))
    here.update(KeysUpdate(whole=True, more=True, keys=(row("sk-llmgw-new1"),)))
    assert here.check(asking(b"api-key: sk-llmgw-new1")) is NO_KEY
    assert here.check(asking(b"api-key: sk-llmgw-old1")) == row("sk-llmgw-old1")
    here.update(KeysUpdate(whole=True, keys=(row("sk-llmgw-new2"),)))
    assert here.check(asking(b"api-key: sk-llmgw-old1")) is NO_KEY
    assert here.check(asking(b"api-key: sk-llmgw-new1")) == row("sk-llmgw-new1")
    assert here.check(asking(b"api-key: sk-llmgw-new2")) == row("sk-llmgw-new2")


def test_keys_may_be_no_longer_asked_for() -> None:
    here = access(row())
    here.update(KeysUpdate(whole=True, required=False))
    assert here.check(asking()) is None


def test_a_scope_holds_names_of_models_or_aliases() -> None:
    assert may_use(row(), "a", "m")
    assert may_use(row(models=("m",)), "a", "m")
    assert may_use(row(models=("a",)), "a", "m")
    assert not may_use(row(models=("b",)), "a", "m")
    assert not may_use(row(models=()), "a", "m")


@pytest.mark.parametrize("path", [b"/v1/models", b"/v1/nothing", b"/v1", b"/v1/models/a%2Fb"])
def test_all_of_the_api_is_guarded_known_or_not_ho30(path: bytes) -> None:
    assert is_guarded(path)


def test_health_is_not() -> None:
    assert not is_guarded(b"/healthz")
    assert not is_guarded(b"/readyz")


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 2))
def test_a_worker_that_came_late_knows_what_the_others_know(steps: list[int], start: int) -> None:
    """Whole, then changes, in any order: the same set, and the same as the book's own."""
    keys = [row(f"sk-llmgw-k{number:03}") for number in range(4)]
    book, early = KeyBook(), Access(required=True)
    for message in book.replace(keys[:start]):
        early.update(message)
    for step, number in enumerate(steps):
        gone = [keys[number].digest] if step % 2 else []
        for message in book.change([] if gone else [keys[number]], gone):
            early.update(message)
    late = Access(required=True)
    for message in book.whole():
        late.update(message)
    for key in keys:
        asked = asking(b"api-key: sk-llmgw-" + key.key_id[-4:].encode())
        assert early.check(asked) == late.check(asked)
        assert (early.check(asked) == key) == (book.by_id(key.key_id) == key)


@pytest.mark.parametrize("many", [0, 1, SLICE, SLICE + 1, 3 * SLICE])
def test_slices_hold_every_row_once(many: int) -> None:
    rows = [KeyRow(digest=number.to_bytes(32, "big"), key_id=str(number)) for number in range(many)]
    parts = list(sliced(rows))
    assert [one for part in parts for one in part] == rows
    assert len(parts) == max(1, -(-many // SLICE))
