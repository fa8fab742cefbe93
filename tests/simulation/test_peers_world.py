"""What nodes gain that fetch one version together, beside a star, with the real picker.

Pieces are coarse here (hundreds where 140 GB make 8,345), and a piece has to be whole before it is passed on,
so that a swarm is shown worse than it is. The whole table, with 400 nodes, is printed by peers_table.py.
"""

from collections.abc import Callable

import pytest

from llmgw_agent.core.pieces import Ask, Snapshot, plan_next
from tests.simulation.peers_world import COPY_S, Node, World

#: Virtual time costs real work: seconds in all, on a machine that may be busy.
pytestmark = pytest.mark.timeout(120)


def fetched(
    n: int, pieces: int, bm: float, *, change: Callable[[World], None] = lambda _: None, most: float = 5.0,
    waiting_for: Callable[[Node], bool] = lambda _: True, **world: object,
) -> World:  # fmt: skip
    made = World(n, pieces, bm=bm, **world)  # type: ignore[arg-type]
    change(made)
    made.run(most * COPY_S, waiting_for=waiting_for)
    late = [node.name for node in made.nodes.values() if waiting_for(node) and node.done_at is None]
    assert not late, f"after {made.now / COPY_S:.1f} copies' time these are not done: {late[:5]}"
    return made


@pytest.mark.parametrize(
    ("n", "pieces", "bm", "bar"),
    [(4, 240, 1, 1.15), (4, 240, 4, 1.15), (40, 240, 1, 1.2), (40, 240, 4, 1.15), (100, 60, 4, 1.9)],
)
def test_a_swarm_takes_little_longer_than_one_copy(n: int, pieces: int, bm: float, bar: float) -> None:
    world = fetched(n, pieces, bm, most=bar + 1)
    took = world.copies()
    star = max(1.0, n / bm)  # every copy over the mirror's link
    print(f"\nn={n} Bm={bm}Bn, {pieces} pieces: star {star:.2f}, swarm {took:.2f}, "
          f"mirror sent {world.mirror.sent / pieces:.2f} copies")  # fmt: skip
    assert 1.0 <= took <= bar


def test_with_peers_off_it_is_a_star() -> None:
    world = fetched(8, 60, 1, peers=False, most=12)
    assert 8.0 <= world.copies() <= 8.5
    assert 8 * 60 <= world.mirror.sent <= 8 * 60 * 1.05, "few pieces went to one node twice"


def test_a_slow_node_slows_nobody_else() -> None:
    def slow(world: World) -> None:
        world.nodes["n0"].slowness = 20.0

    def quick(node: Node) -> bool:
        return node.name != "n0"

    world = fetched(8, 120, 4, change=slow, waiting_for=quick)
    assert world.copies(quick) <= 1.5


def test_a_node_that_lies_is_asked_no_more_by_whom_it_lied_to() -> None:
    def lies(world: World) -> None:
        world.nodes["n0"].corrupts = True

    world = fetched(8, 120, 1, change=lies)
    assert all(node.wrong <= 2 for node in world.nodes.values()), "so many were on their way at most"
    assert sum(node.wrong for node in world.nodes.values()) > 0
    assert world.copies() <= 1.6


def test_a_node_that_leaves_half_way_takes_nothing_with_it() -> None:
    def leaves(world: World) -> None:
        world.at(0.5 * COPY_S, lambda: world.leaves(world.nodes["n0"]))

    def stays(node: Node) -> bool:
        return node.name != "n0"

    world = fetched(8, 120, 1, change=leaves, waiting_for=stays)
    assert world.copies(stays) <= 1.6


def test_without_the_mirror_what_is_out_goes_round_and_with_it_again_all_come_to_an_end() -> None:
    def dies(world: World) -> None:
        world.at(0.5 * COPY_S, lambda: world.leaves(world.mirror))
        world.at(1.4 * COPY_S, check)
        world.at(1.5 * COPY_S, lambda: setattr(world.mirror, "gone", False))

    def check() -> None:
        out = 0
        for node in world.nodes.values():
            out |= node.have
        assert 0 < out.bit_count() < world.pieces
        assert all(node.have == out for node in world.nodes.values()), "what is out reached everybody"

    world = World(8, 120, bm=1)
    dies(world)
    world.run(5 * COPY_S)
    assert not world.unfinished()
    assert world.copies() <= 2.7


# --- each bar is missed when what keeps it is broken


def never_of_peers(snapshot: Snapshot, now: float, chance: Callable[[], float]) -> tuple[Ask, ...]:
    mirror = snapshot.mirror
    assert mirror is not None
    return tuple(ask for ask in plan_next(snapshot, now, chance) if ask.source == mirror.name)


def test_planted_nodes_that_ask_the_mirror_alone_are_seen() -> None:
    world = World(8, 120, bm=1, planner=never_of_peers)
    world.run(4 * COPY_S)
    assert world.unfinished()


def test_planted_a_mirror_that_sends_everybody_the_same_is_seen() -> None:
    world = World(8, 120, bm=1)
    world.swarm.next = lambda lacks, **_: (lacks & -lacks).bit_length() - 1  # type: ignore[method-assign]
    world.run(10 * COPY_S)
    assert world.copies() > 1.5


def test_planted_pieces_that_nobody_checks_are_seen() -> None:
    world = World(8, 120, bm=1, checks_pieces=False)
    world.nodes["n0"].corrupts = True
    world.run(5 * COPY_S)
    assert sum(node.wrong for node in world.nodes.values()) == 0
    assert any(node.standing["n0"].banned is None for node in world.nodes.values() if "n0" in node.standing)
