"""Settings at run time: whole or not at all, what only a restart changes, and a file seen to change."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from llmgw_kit.errors import StartupError
from llmgw_kit.settings import load
from llmgw_kit.testing.clock import FakeClock
from llmgw_router.reload import AT_START, LOOK_S, WHILE_RUNNING, Reloader, Source, changed, needs_restart
from llmgw_router.settings import RouterSettings, check

GOOD: dict[str, object] = {"endpoints": ["a=http://h:1=m"], "drain_s": 5}


class Applied:
    def __init__(self) -> None:
        self.settings: list[RouterSettings] = []
        self.some = asyncio.Event()

    def __call__(self, settings: RouterSettings) -> None:
        self.settings.append(settings)
        self.some.set()


def made(path: Path, file: dict[str, object]) -> tuple[Reloader, Applied, FakeClock]:
    path.write_text(yaml.safe_dump(file))

    def read() -> RouterSettings:
        settings = load(RouterSettings, config=path, flags={})
        check(settings)
        return settings

    applied, clock = Applied(), FakeClock()
    return Reloader(read(), Source(read, path), applied, clock), applied, clock


def test_every_setting_is_known_to_change_or_not() -> None:
    fields = set(RouterSettings.model_fields)
    assert fields - AT_START - WHILE_RUNNING == set(), "say in reload.py whether it can change at run time"
    assert frozenset() == AT_START & WHILE_RUNNING


async def test_good_settings_are_applied_and_told(tmp_path: Path) -> None:
    reloader, applied, clock = made(tmp_path / "f.yaml", GOOD)
    await clock.advance(10)
    (tmp_path / "f.yaml").write_text(yaml.safe_dump({**GOOD, "drain_s": 9, "log_level": "debug"}))
    outcome = await reloader.reload("a test")
    assert (outcome.fine, outcome.fields, outcome.why) == (True, ("drain_s", "log_level"), ())
    assert [one.drain_s for one in applied.settings] == [9]
    assert reloader.current.drain_s == 9
    assert reloader.loaded_at_unix_s == clock.unix_s()
    assert (reloader.succeeded, reloader.failed) == (1, 0)


REFUSED: dict[str, tuple[str, str]] = {
    "no YAML": ("endpoints: [", "is not YAML"),
    "unknown key": ("endpointss: []", "did you mean 'endpoints'?"),
    "nothing to serve": ("drain_s: 3", "nothing to serve"),
    "one bad value among good ones": ("endpoints: ['a=http://h:1=m']\ndrain_s: -1\ntotal_s: 7", "drain_s"),
    "half written": ("endpoints:\n- a=http://h:1", "endpoints.0"),
    "another port": (
        "endpoints: ['a=http://h:1=m']\nlisten: 127.0.0.1:99\ndrain_s: 9",
        "listen: cannot change",
    ),
    "more workers, and an endpoint": ("endpoints: ['b=http://h:1=m']\nworkers: 3", "workers: cannot change"),
    "keys where there were none": (
        f"endpoints: ['a=http://h:1=m']\nkeys: [{{id: k, digest: 'sha256:{'0' * 64}'}}]",
        "keys: cannot change",
    ),
}


@pytest.mark.parametrize(("text", "says"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_cannot_be_used_changes_nothing_and_says_why(tmp_path: Path, text: str, says: str) -> None:
    reloader, applied, _ = made(tmp_path / "f.yaml", GOOD)
    before = reloader.current
    (tmp_path / "f.yaml").write_text(text)
    outcome = await reloader.reload("a test")
    assert not outcome.fine
    assert says in "\n".join(outcome.why)
    assert applied.settings == []
    assert reloader.current is before
    assert reloader.last is outcome
    assert (reloader.succeeded, reloader.failed) == (0, 1)


async def test_a_gone_file_changes_nothing(tmp_path: Path) -> None:
    reloader, applied, _ = made(tmp_path / "f.yaml", GOOD)
    (tmp_path / "f.yaml").unlink()
    assert "cannot be read" in "\n".join((await reloader.reload("a test")).why)
    assert applied.settings == []


def test_a_field_that_waits_for_a_restart_is_named_and_others_are_not(tmp_path: Path) -> None:
    before = load(RouterSettings, config=None, flags={"listen": "127.0.0.1:1"})
    after = load(RouterSettings, config=None, flags={"listen": "127.0.0.1:2", "drain_s": 1.0})
    assert changed(before, after) == ("listen", "drain_s")
    assert needs_restart(before, after) == ("listen",)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _replace(path: Path, text: str) -> None:
    other = path.with_suffix(".new")
    other.write_text(text)
    other.rename(path)


@pytest.mark.parametrize("write", [_write, _replace], ids=["in place", "by a rename"])
async def test_a_changed_file_is_seen_once_it_is_quiet(
    tmp_path: Path, write: Callable[[Path, str], None]
) -> None:
    reloader, applied, clock = made(tmp_path / "f.yaml", GOOD)
    watching = asyncio.create_task(reloader.watch(clock.sleep))
    try:
        await clock.until_asleep()
        write(tmp_path / "f.yaml", yaml.safe_dump({**GOOD, "drain_s": 77}))
        await clock.advance(LOOK_S)
        assert applied.settings == []
        # Changed again: who writes in place is not done.
        write(tmp_path / "f.yaml", yaml.safe_dump({**GOOD, "drain_s": 778}))
        await clock.advance(LOOK_S)
        assert applied.settings == []
        await clock.advance(LOOK_S)
        await asyncio.wait_for(applied.some.wait(), 10)
        assert [one.drain_s for one in applied.settings] == [778]
        await clock.until_asleep()
        for _ in range(5):
            await clock.advance(LOOK_S)
        assert len(applied.settings) == 1
    finally:
        watching.cancel()


async def test_the_swap_of_a_config_maps_link_is_seen(tmp_path: Path) -> None:
    """As a kubelet does it: file -> ..data/file, ..data -> a folder, and only ..data is renamed."""
    for name, drain_s in (("v1", 5), ("v2", 42)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f.yaml").write_text(yaml.safe_dump({**GOOD, "drain_s": drain_s}))
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "f.yaml").symlink_to("..data/f.yaml")

    def read() -> RouterSettings:
        return load(RouterSettings, config=tmp_path / "f.yaml", flags={})

    applied, clock = Applied(), FakeClock()
    reloader = Reloader(read(), Source(read, tmp_path / "f.yaml"), applied, clock)
    watching = asyncio.create_task(reloader.watch(clock.sleep))
    try:
        await clock.until_asleep()
        (tmp_path / "..next").symlink_to("v2")
        os.rename(tmp_path / "..next", tmp_path / "..data")
        await clock.advance(2 * LOOK_S)
        await asyncio.wait_for(applied.some.wait(), 10)
        assert [one.drain_s for one in applied.settings] == [42]
    finally:
        watching.cancel()


async def test_a_file_that_somebody_else_had_read_already_is_not_read_again(tmp_path: Path) -> None:
    reloader, applied, clock = made(tmp_path / "f.yaml", GOOD)
    watching = asyncio.create_task(reloader.watch(clock.sleep))
    try:
        await clock.until_asleep()
        (tmp_path / "f.yaml").write_text("nonsense: 1")
        assert not (await reloader.reload("an operator")).fine
        for _ in range(4):
            await clock.advance(LOOK_S)
        assert (reloader.failed, applied.settings) == (1, [])
    finally:
        watching.cancel()


@pytest.mark.parametrize(
    "data", [b"drain_s: 5 # caf\xe9\n", b"drain_s: 2027-02-30\n"], ids=["not UTF-8", "no such day"]
)
async def test_a_typo_is_refused_and_the_next_good_file_is_taken(tmp_path: Path, data: bytes) -> None:
    """The watch goes on: what it raised would end the router without a drain."""
    reloader, applied, clock = made(tmp_path / "f.yaml", GOOD)
    watching = asyncio.create_task(reloader.watch(clock.sleep))
    try:
        await clock.until_asleep()
        (tmp_path / "f.yaml").write_bytes(data)
        await clock.advance(2 * LOOK_S)
        async with asyncio.timeout(10):
            # It is read in a thread, which no turn of the loop hurries.
            while not reloader.failed:
                await asyncio.sleep(0.001)
        await clock.until_asleep()
        assert (reloader.failed, applied.settings) == (1, [])
        (tmp_path / "f.yaml").write_text(yaml.safe_dump({**GOOD, "drain_s": 42}))
        await clock.advance(2 * LOOK_S)
        await asyncio.wait_for(applied.some.wait(), 10)
        assert [one.drain_s for one in applied.settings] == [42]
    finally:
        watching.cancel()


@pytest.mark.parametrize("where", ["read", "apply"])
async def test_a_bug_is_refused_with_its_traceback_and_the_router_goes_on(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken = True

    def bug(at: str) -> None:
        if broken and at == where:
            raise AssertionError("a bug")

    def read() -> RouterSettings:
        bug("read")
        return load(RouterSettings, config=None, flags={"drain_s": 3.0})

    def apply(_: RouterSettings) -> None:
        bug("apply")

    reloader = Reloader(load(RouterSettings, config=None, flags={}), Source(read), apply, FakeClock())
    outcome = await reloader.reload("a test")
    assert not outcome.fine
    assert "AssertionError: a bug" in "\n".join(outcome.why)
    assert (reloader.current.drain_s, reloader.failed) == (30.0, 1)
    assert "Traceback" in caplog.text
    broken = False
    assert (await reloader.reload("a test")).fine
    assert reloader.current.drain_s == 3.0


async def test_two_at_once_are_one_after_the_other(tmp_path: Path) -> None:
    reloader, applied, _ = made(tmp_path / "f.yaml", GOOD)
    (tmp_path / "f.yaml").write_text(yaml.safe_dump({**GOOD, "drain_s": 9}))
    first, second = await asyncio.gather(reloader.reload("one"), reloader.reload("two"))
    assert (first.fields, second.fields) == (("drain_s",), ())
    assert len(applied.settings) == 2


def test_a_missing_file_is_an_error_of_the_start_too(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot be read"):
        load(RouterSettings, config=tmp_path / "none.yaml", flags={})
