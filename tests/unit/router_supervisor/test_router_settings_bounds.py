"""What `serve` could not use is refused when the file is read, by the name under which it stands there."""

from pathlib import Path

import pytest
import yaml

from llmgw_kit.errors import StartupError
from llmgw_kit.settings import load
from llmgw_router.relay import ipc
from llmgw_router.settings import RouterSettings, check

HUGE = 10**26


def made(tmp_path: Path, **file: object) -> RouterSettings:
    path = tmp_path / "router.yaml"
    path.write_text(yaml.safe_dump({"endpoints": ["a=http://h:1=m"], **file}))
    settings = load(RouterSettings, config=path, flags={})
    check(settings)
    return settings


def refusal(tmp_path: Path, **file: object) -> str:
    with pytest.raises(StartupError) as caught:
        made(tmp_path, **file)
    return "\n".join(caught.value.lines())


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ({"endpoints": [{"id": "a", "url": "http://h:1", "models": ["m"], "weight": HUGE}]}, "weight"),
        ({"max_body_bytes": HUGE}, "max_body_bytes"),
        ({"admission": {"max_in_flight": HUGE}}, "admission.max_in_flight"),
        ({"admission": {"max_in_flight_per_model": HUGE}}, "admission.max_in_flight_per_model"),
        ({"admission": {"max_queued": HUGE}}, "admission.max_queued"),
        ({"admission": {"max_queued_per_model": HUGE}}, "admission.max_queued_per_model"),
        ({"admission": {"model_in_flight": {"big": 0}}}, "admission.model_in_flight.big"),
        ({"admission": {"model_in_flight": {"big": HUGE}}}, "admission.model_in_flight.big"),
        ({"choosing": {"prefix_body_bytes": HUGE}}, "choosing.prefix_body_bytes"),
        ({"choosing": {"slow_min_samples": HUGE}}, "choosing.slow_min_samples"),
        ({"choosing": {"eject_min_requests": HUGE}}, "choosing.eject_min_requests"),
    ],
    ids=str,
)
def test_numbers_that_nobody_means(tmp_path: Path, file: dict[str, object], named: str) -> None:
    assert named in refusal(tmp_path, **file)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e26], ids=str)
@pytest.mark.parametrize(
    "name",
    [
        "drain_s",
        "unready_s",
        "request_head_s",
        "activity_tick_s",
        "activity_ttl_s",
        "worker_hang_s",
        "connect_s",
        "first_byte_s",
        "idle_s",
        "write_stall_s",
        "total_s",
    ],
)
def test_times_that_no_timer_takes(tmp_path: Path, name: str, value: float) -> None:
    says = refusal(tmp_path, **{name: value})
    # As the file has it, with the file: not the table that it ends up in.
    assert f"router.yaml: {name}:" in says
    assert "profiles" not in says


@pytest.mark.parametrize(
    ("table", "name"),
    [("admission", "age_bound_s"), ("choosing", "retry_min_per_s"), ("choosing", "imbalance")],
)
def test_numbers_of_tables_are_finite(tmp_path: Path, table: str, name: str) -> None:
    assert f"{table}.{name}" in refusal(tmp_path, **{table: {name: float("inf")}})


@pytest.mark.parametrize("name", ["usage_file", "access_log_file"])
def test_a_log_is_no_folder(tmp_path: Path, name: str) -> None:
    says = refusal(tmp_path, **{name: str(tmp_path)})
    assert name in says
    assert str(tmp_path) in says


def test_the_folder_of_a_log_must_be_there_and_that_of_usage_must_be_possible(tmp_path: Path) -> None:
    assert "access_log_file" in refusal(tmp_path, access_log_file=str(tmp_path / "not" / "there"))
    # Its folder is made.
    made(tmp_path, usage_file=str(tmp_path / "not" / "there"))
    (tmp_path / "file").write_text("")
    says = refusal(tmp_path, usage_file=str(tmp_path / "file" / "usage"))
    assert "usage_file" in says
    assert f"{tmp_path / 'file'} is no folder" in says


@pytest.mark.parametrize("path", ["/dev/null", "/dev/stdout"])
def test_a_log_may_be_a_device(tmp_path: Path, path: str) -> None:
    made(tmp_path, access_log_file=path)


def test_what_no_field_bounds_is_still_found_before_a_worker_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frame that would carry it is made when the file is checked."""
    monkeypatch.setattr(ipc, "MAX_FRAME_BYTES", 4096)
    assert "cannot be told to relay workers" in refusal(tmp_path, model_profiles={"m" * 5000: "batch"})


@pytest.mark.parametrize("profiles", [["nope"], ["batch", "nope"]], ids=str)
def test_a_key_names_profiles_that_are_there(tmp_path: Path, profiles: list[str]) -> None:
    key = {"id": "ci", "key": "sk-llmgw-of-a-test-that-is-long", "profiles": profiles}
    says = refusal(tmp_path, keys=[key])
    assert "key ci" in says
    assert "'nope'" in says
    assert "batch, interactive" in says
