"""A short run of the crash seeds, and the bugs they must find; `make soak-mirror` runs many."""

import asyncio
import sys
from pathlib import Path

import pytest

from .crash_plants import PLANTS

ROOT = Path(__file__).parents[3]
#: No new seed after so long; one takes about a second.
SHORT_S = 12.0
PATIENCE_S = 110.0


async def play(*arguments: str) -> tuple[int, str]:
    """Exit status and what was said."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.mirror.crash_seeds", *arguments,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        out, _ = await asyncio.wait_for(program.communicate(), PATIENCE_S)
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert program.returncode is not None, "it was waited for"
    return program.returncode, out.decode()


async def test_seeds_of_death_and_of_a_full_disk_break_nothing() -> None:
    status, said = await play("--seeds", "30", "--limit-s", str(SHORT_S))
    assert status == 0, said
    assert "nothing is broken" in said


@pytest.mark.parametrize("plant", sorted(PLANTS))
async def test_a_planted_bug_is_found(plant: str) -> None:
    status, said = await play("--first", "5", "--seeds", "60", "--plant", plant)
    assert status == 1, said
    assert "Broken" in said
    assert "replay: make soak-mirror SEED=" in said
