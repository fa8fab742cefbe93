"""Durations and counts as people read them; used by texts that stand beside exact numbers."""


def lasting(seconds: float) -> str:
    """The two largest units: "8 s", "2 m 08 s", "3 h 10 m", "6 d 02 h"."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"


def counted(count: int, noun: str) -> str:
    """ "1 GPU", "8 GPUs" """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def sized(size_bytes: int) -> str:
    """Decimal, three digits, as in the bars and tables beside it: "42.9 GB", "537 MB"."""
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.3g} {unit}"
    return f"{size_bytes} B"
