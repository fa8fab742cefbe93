"""Files cut into pieces with one numbering, and sets of pieces as integers.

Both ends of a conversation about pieces compute the numbering from the sizes alone: the pieces of the first
file, then those of the next; no piece spans two files, an empty file has none. A set of pieces is an int,
bit n for piece n, so that union, difference and "who has it" cost one operation whatever the size. On the
wire it is the hex of its little-endian bytes.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmgw_kit.errors import InvalidRequest

#: What a mirror hashes one by one: 16 MiB are milliseconds of a fast link, and 140 GB make 8,345 of them.
PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class Place:
    """Where a piece lies: in the file of that index, `length` bytes from `offset`."""

    file: int
    offset: int
    length: int


class Layout:
    """The numbering of one sequence of files."""

    def __init__(self, piece_bytes: int, sizes: Sequence[int]) -> None:
        self.piece_bytes = piece_bytes
        self.sizes = tuple(sizes)
        #: Number of each file's first piece, and the count of all at the end.
        self.first = [0]
        for size in sizes:
            self.first.append(self.first[-1] + -(-size // piece_bytes))

    @property
    def count(self) -> int:
        """Of all pieces."""
        return self.first[-1]

    @property
    def all(self) -> int:
        """The set of every piece."""
        return (1 << self.count) - 1

    def place(self, piece: int) -> Place:
        """Raises IndexError for a number there is not."""
        if not 0 <= piece < self.count:
            raise IndexError(f"piece {piece} of {self.count}")
        # The last file whose first piece is not behind: empty files share that number with their follower.
        file = bisect_right(self.first, piece) - 1
        offset = (piece - self.first[file]) * self.piece_bytes
        return Place(file, offset, min(self.piece_bytes, self.sizes[file] - offset))

    def of_file(self, file: int) -> range:
        """Its pieces, in order."""
        return range(self.first[file], self.first[file + 1])

    def bits_of_file(self, file: int) -> int:
        """Its pieces as a set."""
        return ((1 << self.first[file + 1]) - 1) & ~((1 << self.first[file]) - 1)


def bits_to_hex(bits: int, count: int) -> str:
    """A set of `count` possible pieces for the wire."""
    return bits.to_bytes((count + 7) // 8, "little").hex()


def bits_from_hex(text: object, count: int, *, what: str) -> int:
    """Raises InvalidRequest for anything but hex of the right length without a bit too many."""
    try:
        if not isinstance(text, str) or len(text) != 2 * ((count + 7) // 8):
            raise ValueError
        bits = int.from_bytes(bytes.fromhex(text), "little")
    except ValueError:
        raise InvalidRequest(
            f"{what} is no set of {count} pieces; expected {2 * ((count + 7) // 8)} hexadecimal digits"
        ) from None
    if bits >> count:
        raise InvalidRequest(f"{what} names piece {bits.bit_length() - 1}, there are {count}")
    return bits


def each_bit(bits: int) -> Iterator[int]:
    """The numbers in a set, in order."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def bit_from(bits: int, start: int) -> int:
    """The first number in a set at or after `start`, wrapping; the set is not empty."""
    assert bits, "an empty set has no number"
    upper = bits >> start
    if upper:
        return start + (upper & -upper).bit_length() - 1
    return (bits & -bits).bit_length() - 1
