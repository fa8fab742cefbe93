"""Numbers in sentences."""


def counted(count: int, noun: str) -> str:
    """`1 endpoint`, `2 endpoints`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
