"""What a router without controller and database does not load: a second of its start, 25 MB of its size; and
what it does not load before its relay workers serve."""

import subprocess
import sys

import pytest

HEAVY = ("grpc", "redis", "asyncpg", "google.protobuf")
AFTER_THE_WORKERS = ("aiohttp", "prometheus_client", "llmgw_router.pages")


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("llmgw_router.pages", HEAVY),
        ("llmgw_router.serving, llmgw_router.reload", (*HEAVY, *AFTER_THE_WORKERS)),
        ("llmgw_router.main", (*HEAVY, *AFTER_THE_WORKERS, "llmgw_router.drill")),
        ("llmgw_router.relay.worker", (*HEAVY, "aiohttp", "prometheus_client", "pydantic", "ctypes")),
    ],
)
def test_what_is_loaded(module: str, without: tuple[str, ...]) -> None:
    program = f"import {module}, sys; print(*(name for name in {without!r} if name in sys.modules))"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout.strip() == ""
