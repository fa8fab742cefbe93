"""Amounts of memory as people write them."""

import re

from llmgw_kit.errors import InvalidRequest

_UNITS = {
    "": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")


def parse_size(text: str | int) -> int:
    """Bytes of "24GiB", "512 MB" or a plain number. Raises InvalidRequest."""
    match = _SIZE.match(str(text))
    unit = match.group(2).upper() if match else None
    if match is None or unit not in _UNITS:
        raise InvalidRequest(
            f"{text!r} is no size", next_steps=["write bytes, or a number with KiB, MiB, GiB, TiB"]
        )
    return int(float(match.group(1)) * _UNITS[unit])


def show_size(count: int | None) -> str:
    """For a table: at most one decimal; "-" when unknown."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
