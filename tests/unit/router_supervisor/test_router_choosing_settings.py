"""`choosing:` of the file: its defaults are the workers' own, and what cannot be meant is refused."""

from pathlib import Path

import msgspec
import pytest
import yaml

from llmgw_kit.errors import StartupError
from llmgw_kit.settings import effective, load
from llmgw_router.core.config import Choosing
from llmgw_router.core.endpoints import static_table
from llmgw_router.settings import RouterSettings, check
from llmgw_router.settings_choosing import ChoosingEntry


def made(tmp_path: Path, **file: object) -> RouterSettings:
    path = tmp_path / "router.yaml"
    path.write_text(yaml.safe_dump({"endpoints": ["a=http://h:1=m"], **file}))
    settings = load(RouterSettings, config=path, flags={})
    check(settings)
    return settings


def test_the_file_and_the_workers_have_the_same_defaults() -> None:
    assert ChoosingEntry.model_validate({}).choosing() == Choosing()
    assert set(ChoosingEntry.model_fields) == set(Choosing.__struct_fields__)


def test_what_the_file_says_reaches_the_workers(tmp_path: Path) -> None:
    settings = made(
        tmp_path,
        choosing={"eject_after": 7, "session_header": None, "session_fields": ["user"], "probe_s": None},
        profiles={"batch": {"pools": ["nightly"]}},
    )
    told = settings.worker_config()
    assert told.choosing == msgspec.structs.replace(
        Choosing(), eject_after=7, session_header=None, session_fields=("user",), probe_s=None
    )
    assert told.profiles["batch"].pools == ("nightly",)
    assert told.profiles["interactive"].pools is None
    assert "eject_after: 7" in effective(settings)


def test_the_tier_of_a_static_endpoint_reaches_its_row(tmp_path: Path) -> None:
    settings = made(tmp_path, endpoints=[{"id": "a", "url": "http://h:1", "models": ["m"], "tier": 2}])
    ((row,), _) = static_table(settings.static_endpoints())
    assert row.tier == 2


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"eject_affter": 1}, "eject_affter"),
        ({"eject_most_share": 1.5}, "eject_most_share"),
        ({"session_header": "no blanks"}, "session_header"),
        ({"session_fields": ["model"]}, "session_fields"),
        ({"slow_factor": 1}, "slow_factor"),
        ({"cool_down_first_s": 0}, "cool_down_first_s"),
    ],
)
def test_refused_with_the_name_of_the_field(tmp_path: Path, entry: dict[str, object], says: str) -> None:
    with pytest.raises(StartupError) as caught:
        made(tmp_path, choosing=entry)
    assert says in "\n".join(caught.value.lines())
