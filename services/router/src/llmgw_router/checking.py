"""`llmgw-router check-config`: what `serve` would make of a file, without opening anything."""

from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from llmgw_kit.errors import LlmgwError
from llmgw_kit.lifecycle import print_error
from llmgw_kit.settings import load
from llmgw_router.core.words import counted
from llmgw_router.settings import RouterSettings, check

#: Of `--output json`; grows by fields, and changes its name where one changes its meaning.
SCHEMA = "llmgw.router.check-config/1"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """`settings` None: refused, and `error` says why."""

    path: Path
    settings: RouterSettings | None = None
    error: LlmgwError | None = None


def checked(path: Path) -> Checked:
    """Read and check the file as a start and a reload do, environment included, flags not."""
    try:
        settings = load(RouterSettings, config=path, flags={})
        check(settings)
    except LlmgwError as e:
        return Checked(path=path, error=e)
    return Checked(path=path, settings=settings)


def print_checked(found: Checked, *, output: str) -> int:
    """Print the verdict; returns the exit status: 0 fine, 1 refused."""
    if output == "json":
        click.echo(msgspec.json.encode(_json(found)))
    elif found.error is not None:
        print_error(found.error)
    else:
        assert found.settings is not None
        click.echo(f"{found.path}: fine")
        for key, value in _summary(found.settings).items():
            click.echo(f"  {key:<16} {value}")
    return 1 if found.error is not None else 0


def _json(found: Checked) -> dict[str, object]:
    summary = None if found.settings is None else _summary(found.settings)
    why = [] if found.error is None else found.error.lines()
    return {
        "schema": SCHEMA,
        "file": str(found.path),
        "fine": found.error is None,
        "why": why,
        "settings": summary,
    }


def _summary(settings: RouterSettings) -> dict[str, object]:
    models = {model for entry in settings.endpoints for model in entry.models}
    return {
        "listen": str(settings.client_address),
        "routes from": f"controllers {settings.controller}"
        if settings.controller
        else f"{counted(len(settings.endpoints), 'endpoint')}, {counted(len(models), 'model')}",
        "api keys": "database"
        if settings.database_url is not None
        else len(settings.keys)
        if settings.keys
        else "none: open to whoever reaches the port",
        "workers": settings.worker_count,
        "profiles": ", ".join(sorted(settings.worker_config().profiles)),
    }
