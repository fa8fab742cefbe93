"""Where an exchange stands, which decides the deadline that looks at it. Integers: see core/heads.py."""

from typing import Final

ARRIVING: Final = 0
HELD: Final = 1
CONNECTING: Final = 2
#: Sent; not a byte of an answer's body yet.
WAITING: Final = 3
RELAYING: Final = 4
OVER: Final = 5
#: Waits for room at a model that is up.
QUEUED: Final = 6
