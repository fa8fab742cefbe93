"""What settings can be at most, and what no field's bound finds: files, and the frames for workers."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from llmgw_kit.errors import StartupError
from llmgw_router.core.config import WorkerConfig
from llmgw_router.core.endpoints import StaticEndpoint, static_table
from llmgw_router.relay import ipc
from llmgw_router.settings_keys import KeyEntry

#: Longer spans are off, not long; and no timer takes what is far beyond.
WEEK_S = 7 * 86_400
#: More of anything is a slip of the keyboard.
MANY = 2**31 - 1
LARGEST_BODY = 2**40
HEAVIEST = 1_000_000


def check_files(usage_file: Path | None, access_log_file: Path | None) -> None:
    """Whether they can be written to, as far as that can be seen. Raises StartupError."""
    if access_log_file is not None:
        _no_folder("access_log_file", access_log_file)
        if not access_log_file.parent.is_dir():
            raise StartupError(
                f"access_log_file is {access_log_file}, but {access_log_file.parent} is no folder",
                next_steps=[f"mkdir -p {access_log_file.parent}"],
            )
    if usage_file is not None:
        _no_folder("usage_file", usage_file)
        # The folders that miss are made with the first record.
        there = next(one for one in usage_file.absolute().parents if os.path.lexists(one))
        if not there.is_dir():
            raise StartupError(
                f"usage_file is {usage_file}, but {there} is no folder", next_steps=["give another path"]
            )


def _no_folder(name: str, path: Path) -> None:
    if path.is_dir():
        raise StartupError(
            f"{name} is {path}, which is a folder",
            next_steps=[f"name a file in it: {path / f'{name}.jsonl'}"],
        )


def check_told(config: Callable[[], WorkerConfig], endpoints: Sequence[StaticEndpoint]) -> None:
    """Make the frames that relay workers would get. Raises StartupError."""
    rows, models = static_table(endpoints)
    try:
        ipc.pack(ipc.Reconfigure(config=config()))
        ipc.pack(ipc.TableUpdate(endpoints=rows, models=models))
    except (ipc.ChannelBroken, ArithmeticError, ValueError, TypeError) as e:
        raise StartupError(
            f"these settings cannot be told to relay workers: {e}",
            next_steps=["look for a number or a list that is far too large"],
        ) from None


def check_profiles_of_keys(keys: Iterable[KeyEntry], profiles: Iterable[str]) -> None:
    """Raises StartupError where a key of the file may use a profile that is not there."""
    there = sorted(profiles)
    for row in (key.row() for key in keys):
        for name in row.profiles or ():
            if name not in there:
                raise StartupError(
                    f"key {row.key_id} has the profile {name!r}; there are: {', '.join(there)}",
                    next_steps=["write that name, or add the profile under `profiles:`"],
                )
