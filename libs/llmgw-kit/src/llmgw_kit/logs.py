"""Logging: one line an event on stderr, UTC, machine-readable on request."""

import json
import logging
import sys
import time
from typing import Any, Literal


class _Text(logging.Formatter):
    converter = staticmethod(time.gmtime)  # logs are UTC

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
        )


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(*, level: str = "info", style: Literal["text", "json"] = "text") -> None:
    """Set up the root logger once. `level` is a name of the logging module, in any case."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if style == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # These speak at INFO of every request or every ping, which is ours to decide.
    for chatty in ("aiohttp.access", "asyncio", "grpc", "opentelemetry"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
