"""What a pass costs in the pure core, from 50 to 500 nodes: no wire, no store, one thread.

    python -m tests.bench.fleet_core [--nodes 50,100,200,350,500] [--rounds 20] [--cases TEXT]
                                     [--profile CASE]

Eight devices and two models a node, four replicas, one in ten a gang of two nodes. Cases are the passes a
leader really makes: one that finds nothing to do, one while it still learns, one after a node was lost, one
with 40 and with 500 models that no node has room for (under each policy of eviction), a start of the whole
fleet from nothing, what is published after a pass, and what a status shows, also where it suggests whom to
evict.
"""

import argparse
import cProfile
import math
import pstats
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from llmgw_controller.core.apply import apply
from llmgw_controller.core.heard import NodeHeard, ShardState
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.routes import routes
from llmgw_controller.core.rows import Phase
from llmgw_controller.core.state import EvictionPolicy, Snapshot
from llmgw_controller.core.view import fleet_view
from llmgw_kit.ids import ModelId, NodeId
from tests.unit.controller.build import (
    GIB,
    NOW,
    TERM_STARTED,
    activity,
    heard,
    member,
    model,
    node,
    profile,
    replica,
    report,
    router,
    shard,
    snapshot,
)

#: Nodes of one interconnect.
FABRIC_NODES = 16
DEVICES = 8
#: Models without room: some, and far more than anybody would let wait.
WAITING, MANY = 40, 500
#: Seconds without use after which a model may leave.
IDLE_AFTER_S = 60.0


def fleet(count: int, *, running: bool) -> Snapshot:
    """`count` nodes, 2 models a node, 2 replicas a model; all READY and heard, or none yet placed."""
    nodes = [
        node(f"n{number:04}", DEVICES, fabrics=(f"ib-{number // FABRIC_NODES}",)) for number in range(count)
    ]
    one = profile("one")
    pair = profile("pair", gpus_per_node=2, tensor_parallel=2)
    gang = profile("gang", nodes=2, tensor_parallel=2, extra_ports=("rendezvous",))
    models = [
        model(f"m{number:04}", gang if number % 10 == 0 else pair if number % 3 == 0 else one, replicas=2)
        for number in range(2 * count)
    ]
    free = {one.node_id: list(range(DEVICES)) for one in nodes}
    rows, reports = [], {one.node_id: [] for one in nodes}  # type: ignore[var-annotated]
    place = 0
    for wanted in models if running else ():
        for number in (1, 2):
            wide = wanted.profiles[0]
            parts = []
            for rank in range(wide.nodes):
                while len(free[nodes[place % count].node_id]) < wide.gpus_per_node:
                    place += 1
                where = nodes[place % count].node_id
                taken = [free[where].pop(0) for _ in range(wide.gpus_per_node)]
                port = 20000 + taken[0]
                parts.append(shard(f"{wanted.name}/{number}", where, *taken, rank=rank, port=port))
                place += 1
            row = replica(wanted, number, Phase.READY, *parts)
            rows.append(row)
            for part in parts:
                reports[part.node_id].append(report(row, part, ShardState.SERVING))
    words = [heard(one, reports[one.node_id]) for one in nodes]
    members = [router(f"r{number}") for number in range(4)]
    touched = {row.replica_id: 100.0 for row in rows[::2]}
    return snapshot(
        models,
        nodes,
        rows,
        words,
        activity=activity(*members, touched=touched),  # type: ignore[arg-type]
        routers={one.router_id: member(one.router_id) for one in members},
    )


def silent(full: Snapshot, *names: str) -> dict[NodeId, NodeHeard]:
    """Heard, but these long ago."""
    gone = {NodeId(name) for name in names}
    return {
        name: replace(one, heard_at=TERM_STARTED, connected=False) if name in gone else one
        for name, one in full.heard.items()
    }


def crowded(full: Snapshot, eviction: EvictionPolicy, waiting: int = WAITING) -> Snapshot:
    """The fleet with so many models more, each asked for and without room: every node is taken whole. Of what
    runs, a half was used just now, and the rest is idle and cheap to bring back, but for no longer than its
    model wants it kept."""
    catalog = {**full.catalog.models}
    for name, one in catalog.items():
        catalog[name] = replace(one, min_residency_s=0.0, idle_after_s=IDLE_AFTER_S)
    rows = {**full.stored.replicas}
    for number in range(waiting):
        # Of several shapes, so that the planner must search for each of them.
        wide = profile(
            "wide", nodes=1 + number % 4, gpus_per_node=DEVICES, tensor_parallel=DEVICES,
            memory_bytes=(1 + number % 5) * GIB,
        )  # fmt: skip
        waits = model(f"w{number:04}", wide, replicas=1, priority=1)
        catalog[waits.name] = waits
        row = replica(waits, 1, Phase.UNPLACEABLE)
        rows[row.replica_id] = replace(row, reason="no room")
    snapshot = replace(
        full,
        catalog=replace(full.catalog, models=catalog),
        stored=replace(full.stored, replicas=rows),
        intervals=replace(full.intervals, eviction=eviction),
    )
    # As the passes before have left it: the reasons stand in the rows.
    return replace(snapshot, stored=apply(snapshot.stored, reconcile(snapshot, NOW).changes))


def status(snapshot: Snapshot) -> object:
    """What one GetStatus computes."""
    return fleet_view(snapshot, verdicts(snapshot, NOW), NOW)


def anew(snapshot: Snapshot) -> Snapshot:
    """As the next pass meets it: nothing that was found of an earlier snapshot helps."""
    return replace(snapshot, stored=replace(snapshot.stored), found={})


def cases(count: int) -> dict[str, Callable[[], object]]:
    """Name -> one pass of it."""
    full, bare = fleet(count, running=True), fleet(count, running=False)
    lost = replace(full, heard=silent(full, "n0003"))
    learning = replace(full, term_started=NOW - 5)
    learning = replace(learning, heard={k: v for k, v in full.heard.items() if k != "n0007"})
    changed = replace(
        full.catalog.models[ModelId("m0001")],
        profiles=(profile("one", context_length=9),),
    )
    rolled = replace(
        full, catalog=replace(full.catalog, models={**full.catalog.models, changed.name: changed})
    )
    found = verdicts(full, NOW)
    off, suggest, on = (crowded(full, policy) for policy in EvictionPolicy)
    many_off, _, many_on = (crowded(full, policy, MANY) for policy in EvictionPolicy)
    return {
        "rest": lambda: reconcile(full, NOW),
        "learning": lambda: reconcile(learning, NOW),
        "a node is lost": lambda: reconcile(lost, NOW),
        "a spec changed": lambda: reconcile(rolled, NOW),
        "routes": lambda: routes(full, NOW),
        "view": lambda: fleet_view(anew(full), found, NOW),
        "40 waiting, off": lambda: reconcile(anew(off), NOW),
        "40 waiting, on": lambda: reconcile(anew(on), NOW),
        "500 waiting, off": lambda: reconcile(anew(many_off), NOW),
        "500 waiting, on": lambda: reconcile(anew(many_on), NOW),
        "500 waiting, view": lambda: status(anew(many_off)),
        "suggest status": lambda: status(anew(suggest)),
        "start of all": lambda: reconcile(bare, NOW),
    }


def measure(run: Callable[[], object], rounds: int) -> list[float]:
    """Milliseconds of this thread, each: what a quiet machine would take, whatever else runs on this one."""
    times = []
    for _ in range(rounds):
        began = time.thread_time()
        run()
        times.append((time.thread_time() - began) * 1000)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", default="50,100,200,350,500")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cases", help="only those whose name holds this")
    parser.add_argument("--profile", help="a case to show the hot spots of, at the largest fleet")
    given = parser.parse_args()
    sizes = [int(text) for text in given.nodes.split(",")]
    if given.profile:
        run = cases(sizes[-1])[given.profile]
        profiler = cProfile.Profile()
        profiler.runcall(run)
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(35)
        return
    first: dict[str, float] = {}
    print(f"{'nodes':>5} {'replicas':>8}  {'case':<16} {'median ms':>9} {'p99 ms':>8}  against n log n")
    for size in sizes:
        for name, run in cases(size).items():
            if given.cases and given.cases not in name:
                continue
            rounds = 1 if name == "start of all" else given.rounds
            times = sorted(measure(run, rounds))
            median, p99 = statistics.median(times), times[min(len(times) - 1, int(len(times) * 0.99))]
            unit = median / (size * math.log(size))
            ratio = unit / first.setdefault(name, unit)
            print(
                f"{size:>5} {size * 4:>8}  {name:<16} {median:>9.1f} {p99:>8.1f}  {ratio:>6.2f} x", flush=True
            )


if __name__ == "__main__":
    main()
