"""What is written down about versions for people: who asked for what, and what became of it."""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What happened."""

    ASKED = "asked"
    PUBLISHED = "published"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RETRIED = "retried"
    VERIFIED = "verified"
    QUARANTINED = "quarantined"
    REMOVED = "removed"
    RESTORED = "restored"
    PURGED = "purged"
    EXPORTED = "exported"
    IMPORTED = "imported"


@dataclass(frozen=True)
class Entry:
    """One line. `at`: seconds since 1970. `asked_by`: as the caller said; None: the mirror itself."""

    at: float
    kind: Kind
    model: str
    version: str
    text: str
    path: str | None = None
    asked_by: str | None = None
    bytes: int | None = None
