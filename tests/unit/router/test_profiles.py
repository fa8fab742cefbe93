"""Which routing profile a request gets, and what a configuration file may say of them."""

import re
from pathlib import Path

import pytest

from llmgw_kit.errors import StartupError
from llmgw_router.core.config import INTERACTIVE, RoutingProfile, WorkerConfig
from llmgw_router.core.keys import KeyRow
from llmgw_router.core.profiles import BATCH, SHIPPED, ProfileRefused, choose, usable
from llmgw_router.settings import RouterSettings

PAGE = (Path(__file__).parents[3] / "docs" / "router.md").read_text()
CONFIG = WorkerConfig(
    profiles={**SHIPPED, "night": RoutingProfile(name="night")}, model_profiles={"big": BATCH}
)


def key(*profiles: str) -> KeyRow:
    return KeyRow(digest=b"d", key_id="k", profiles=profiles)


ANY = KeyRow(digest=b"d", key_id="k")


@pytest.mark.parametrize(
    ("model", "who", "asked", "got"),
    [
        ("m", None, None, INTERACTIVE),
        ("big", None, None, BATCH),
        ("big", ANY, None, BATCH),
        ("big", key("night", BATCH), None, "night"),
        ("big", key("night", BATCH), b"batch", BATCH),
        ("big", None, b" night ", "night"),
        ("big", ANY, b"interactive", INTERACTIVE),
        # Its only profile was taken out of the configuration.
        ("big", key("gone"), None, BATCH),
        ("m", key("gone", "night"), None, "night"),
    ],
)
def test_the_most_particular_word_wins(model: str, who: KeyRow | None, asked: bytes | None, got: str) -> None:
    assert choose(CONFIG, model=model, key=who, asked=asked).name == got


@pytest.mark.parametrize(
    ("who", "asked", "listed"),
    [
        (None, b"nigth", "batch, interactive, night"),
        (key("night"), b"batch", "you may use: night."),
        (key("gone"), b"gone", "none by name"),
        (None, b"\xff" * 500, "batch, interactive, night"),
    ],
)
def test_what_may_not_be_asked_for_reads_like_what_does_not_exist(
    who: KeyRow | None, asked: bytes, listed: str
) -> None:
    with pytest.raises(ProfileRefused, match=listed) as caught:
        choose(CONFIG, model="m", key=who, asked=asked)
    assert len(str(caught.value)) < 200


def test_a_key_lists_its_profiles_in_its_own_order() -> None:
    assert usable(CONFIG, key("night", "gone", BATCH)) == ("night", BATCH)
    assert usable(CONFIG, None) == (BATCH, INTERACTIVE, "night")


def settings(**given: object) -> RouterSettings:
    return RouterSettings(controller="c:1", **given)  # type: ignore[arg-type]


def test_a_file_changes_only_what_it_names() -> None:
    config = settings(
        first_byte_s=7,
        profiles={"batch": {"queue_s": 60}, "mine": {"priority": 3, "total_s": None}},
        model_profiles={"m": "mine"},
        default_profile="batch",
    ).worker_config()
    assert sorted(config.profiles) == ["batch", "interactive", "mine"]
    assert config.profiles["batch"].queue_s == 60
    assert config.profiles["batch"].first_byte_s == SHIPPED[BATCH].first_byte_s
    mine = config.profiles["mine"]
    # What it does not say is as in `interactive`, whose deadlines are the plain settings.
    assert (mine.name, mine.priority, mine.total_s, mine.first_byte_s) == ("mine", 3, None, 7)
    assert config.profiles["interactive"].first_byte_s == 7
    assert (config.default_profile, config.model_profiles) == ("batch", {"m": "mine"})


def test_the_shipped_ones_are_what_the_core_ships() -> None:
    assert settings().worker_config().profiles == dict(SHIPPED)


def test_the_values_on_the_page_are_the_shipped_ones() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|", PAGE, re.MULTILINE)
    table = {name: (mine, batch) for name, mine, batch in rows if hasattr(SHIPPED[BATCH], name)}
    assert {"first_byte_s", "queue_s", "hold_s", "priority", "heartbeat"} <= table.keys()
    for name, told in table.items():
        for text, profile in zip(told, (SHIPPED[INTERACTIVE], SHIPPED[BATCH]), strict=True):
            value = getattr(profile, name)
            shown = "–" if value is None else str(value).lower() if isinstance(value, bool) else f"{value:g}"
            assert text == shown, (name, profile.name)


@pytest.mark.parametrize(
    "given",
    [
        {"default_profile": "nope"},
        {"model_profiles": {"m": "nope"}},
        {"profiles": {"mine": {"first_bite_s": 3}}},
        {"profiles": {"mine": {"first_byte_s": 0}}},
        {"profiles": {"mine": {"connect_s": None}}},
        {"profiles": {"My profile": {}}},
        {"admission": {"max_in_flight": 0}},
        {"admission": {"max_inflight": 3}},
        {"admission": {"model_in_flight": {"m": 0}}},
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, object]) -> None:
    with pytest.raises((StartupError, ValueError)):
        settings(**given).worker_config()
