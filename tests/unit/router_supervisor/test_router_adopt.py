"""Settings put in force by a router: what can go wrong goes wrong before anything is sent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw_kit.settings import load
from llmgw_kit.testing.clock import FakeClock
from llmgw_router import router as module
from llmgw_router.core.table import EndpointRow
from llmgw_router.router import Router
from llmgw_router.settings import RouterSettings

KEYS = ("sk-llmgw-of-a-test-that-is-long", "sk-llmgw-another-one-of-a-test")


def settings(endpoint: str, key: str, **more: object) -> RouterSettings:
    flags = {"endpoints": (endpoint,), "keys": (key,), "workers": 1, **more}
    return load(RouterSettings, config=None, flags=flags)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    made = Router(settings("a=http://h:1=m", KEYS[0]), FakeClock(), tmp_path / "cold.sock")
    made.serve_static()
    made.serve_keys(made.settings.keys)
    yield made
    made.pool.close()


def known(router: Router) -> tuple[list[str], list[bool], float, float]:
    """What of both settings is in force."""
    rows = [entry.row() for entry in (*settings("a=http://h:1=m", KEYS[0]).keys, *OTHER.keys)]
    held = [router.pool.key(row.key_id) is not None for row in rows]
    total_s = router.pool._worker_config.profiles["interactive"].total_s
    assert total_s is not None
    return sorted(router.board.routes.endpoints), held, total_s, router.settings.total_s


OTHER = settings("b=http://h:2=m", KEYS[1], total_s=7.0, tracing={"endpoint": "http://127.0.0.1:1"})
OLD = (["a"], [True, False], 3600.0, 3600.0)


def test_all_of_it_is_put_in_force(router: Router) -> None:
    assert known(router) == OLD
    router.adopt(settings("b=http://h:2=m", KEYS[1], total_s=7.0))
    assert known(router) == (["b"], [False, True], 7.0, 7.0)


@pytest.mark.parametrize("part", ["the table", "a key", "the exporter"])
def test_what_breaks_midway_leaves_the_old_in_force(
    router: Router, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> tuple[EndpointRow, ...]:
        raise AssertionError("a bug")

    with monkeypatch.context() as patched:
        match part:
            case "the table":
                patched.setattr(module, "static_table", broken)
            case "a key":
                patched.setattr("llmgw_router.settings_keys.KeyEntry.row", broken)
            case _:
                patched.setattr("llmgw_router.adapters.tracing.OtlpExporter.__init__", broken)
        with pytest.raises(AssertionError):
            router.adopt(OTHER)
    assert known(router) == OLD
    assert router.spans is None
