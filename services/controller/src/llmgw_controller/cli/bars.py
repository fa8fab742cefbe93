"""Usage bars: cells by largest remainder, at least one for each part that is not zero."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmgw.v1 import operator_pb2 as pb


@dataclass(frozen=True)
class Part:
    """One kind of use: its name beside a bar, and its glyph with and without Unicode."""

    name: str
    glyph: str
    ascii: str
    style: str


#: In the order in which a device's use is decided and a bar is drawn.
PARTS: tuple[Part, ...] = (
    Part("busy", "█", "#", "cyan"),
    Part("idle", "░", "o", "cyan"),
    Part("unknown", "▒", "?", ""),
    Part("starting", "▓", "+", "cyan"),
    Part("unhealthy", "X", "X", "red"),
    Part("foreign", "!", "!", ""),
    Part("cordoned", "=", "=", ""),
    Part("free", "·", ".", "dim"),
)

USE_PART = {
    pb.DEVICE_USE_BUSY: "busy",
    pb.DEVICE_USE_IDLE: "idle",
    pb.DEVICE_USE_UNKNOWN: "unknown",
    pb.DEVICE_USE_STARTING: "starting",
    pb.DEVICE_USE_UNHEALTHY: "unhealthy",
    pb.DEVICE_USE_FOREIGN: "foreign",
    pb.DEVICE_USE_CORDONED: "cordoned",
    pb.DEVICE_USE_FREE: "free",
}

BY_NAME = {part.name: part for part in PARTS}


def cells(numbers: Sequence[int], width: int) -> list[int]:
    """Share `width` cells among `numbers`: they add up to it, and no part above zero is left out.

    With more parts above zero than cells the bar grows to one cell each: leaving one out would lie."""
    total = sum(numbers)
    if total == 0:
        return [0] * len(numbers)
    present = [i for i, number in enumerate(numbers) if number]
    width = max(width, len(present))
    exact = [number * width / total for number in numbers]
    given = [max(1, int(share)) if numbers[i] else 0 for i, share in enumerate(exact)]
    # Hand out what is missing to the largest remainders, take what is too much from the widest.
    while sum(given) < width:
        best = max(present, key=lambda i: (exact[i] - given[i], -i))
        given[best] += 1
    while sum(given) > width:
        widest = max((i for i in present if given[i] > 1), key=lambda i: (given[i] - exact[i], given[i], -i))
        given[widest] -= 1
    return given


def numbers_of(parts: pb.DeviceParts) -> list[int]:
    return [getattr(parts, part.name) for part in PARTS]


def legend(parts: pb.DeviceParts) -> str:
    """`3 busy  1 idle  4 free`: exact, zero parts left out."""
    return "  ".join(f"{n} {part.name}" for n, part in zip(numbers_of(parts), PARTS, strict=True) if n)


def device_cells(devices: Iterable[pb.DeviceRow], *, ascii_only: bool) -> list[tuple[str, str]]:
    """One styled glyph a device, in the node's own order."""
    parts = [BY_NAME[USE_PART[d.use]] for d in sorted(devices, key=lambda d: d.device.index)]
    return [(part.ascii if ascii_only else part.glyph, part.style) for part in parts]


def progress(done: float | None, *, width: int, ascii_only: bool) -> str:
    """A bar from 0 to 1; unknown progress is an empty bar."""
    full = round((done or 0.0) * width)
    on, off = ("#", ".") if ascii_only else ("█", "·")
    return on * full + off * (width - full)
