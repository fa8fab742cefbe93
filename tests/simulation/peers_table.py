"""The table of ADR 0035: `python -m tests.simulation.peers_table`, minutes; with NODES, those rows alone.

Time is in copies over one node's link. A star beside it: every copy over the mirror's link. Neighbours are
looked at as often as the agent does, but where `poll` says otherwise: every look of each of 400 nodes at its
40 neighbours is work here.
"""

import sys
import time
from dataclasses import dataclass

from tests.simulation.peers_world import COPY_S, POLL_S, World

#: Virtual time after which a row is given up.
MOST_COPIES = 40


@dataclass(frozen=True)
class Row:
    """`bm`: the mirror's link in those of a node."""

    nodes: int
    pieces: int
    bm: float
    poll_s: float = POLL_S

    @property
    def star(self) -> float:
        """Copies' time without peers."""
        return max(1.0, self.nodes / self.bm)


ROWS = (
    Row(4, 240, 1), Row(4, 240, 4),
    Row(40, 120, 1), Row(40, 120, 4), Row(40, 360, 1), Row(40, 360, 4), Row(40, 1000, 1), Row(40, 1000, 4),
    Row(400, 20, 4, 3.0), Row(400, 120, 1, 3.0), Row(400, 120, 4, 3.0),
)  # fmt: skip


def simulated(row: Row) -> World:
    """That row's world when everybody has everything."""
    world = World(row.nodes, row.pieces, bm=row.bm, poll_s=row.poll_s)
    world.run(MOST_COPIES * COPY_S)
    return world


def told(row: Row) -> str:
    """As a line of the table."""
    began = time.process_time()
    world = simulated(row)
    assert not world.unfinished(), f"after {MOST_COPIES} copies' time {row} is not done"
    sent, cpu_s = world.mirror.sent / row.pieces, time.process_time() - began
    return (
        f"| {row.nodes} | {row.pieces} | {row.bm:g} | {row.poll_s:g} s | {row.star:g} | {world.copies():.2f} "
        f"| {sent:.2f} | {cpu_s:.0f} s |"
    )


if __name__ == "__main__":
    wanted = {int(one) for one in sys.argv[1:]}
    print("| nodes | pieces | mirror's link | poll | star | swarm | copies the mirror sent | CPU |")
    print("|---|---|---|---|---|---|---|---|")
    for one in ROWS:
        if not wanted or one.nodes in wanted:
            print(told(one), flush=True)
