"""Run seeds by hand: `python -m tests.simulation.run --seed 41`, or `--seeds 2000` from there on.

Prints a line a seed, on a violation its text, the last events and what to type to see it again; at the end
what was simulated and which faults landed. Ends with 1 when a seed was violated.
"""

import argparse
import gc
import logging
import sys
import time
from collections import Counter

from tests.simulation.checks import Violation
from tests.simulation.looped import simulate_loops
from tests.simulation.sim import simulate

#: Seeds between two lines of progress when only those are printed.
PROGRESS = 10


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first, or the only one")
    parser.add_argument("--seeds", type=int, default=1, help="how many, counting up")
    parser.add_argument("--hours", type=float, default=1.0, help="simulated, before the faults end")
    parser.add_argument("--loops", action="store_true", help="the real loops instead of the core alone")
    parser.add_argument("--quiet", action="store_true", help="progress instead of a line a seed")
    given = parser.parse_args(arguments)
    # Both controllers log to one place here; what they did is in the trace.
    logging.disable(logging.CRITICAL)
    # Plans and snapshots live for one pass: looking through all of them at each turn costs an eighth of
    # the time.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    run = simulate_loops if given.loops else simulate
    began = time.monotonic()
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    hours, broken = 0.0, []
    for number, seed in enumerate(range(given.seed, given.seed + given.seeds), 1):
        try:
            sim = run(seed, minutes=given.hours * 60)
        except Violation as found:
            broken.append(seed)
            print(f"seed {seed}: {found}", flush=True)
            continue
        faults.update(sim.faults_landed)
        counts.update(sim.checks.counts)
        hours += sim.world.now / 3600
        if not given.quiet:
            told = ", ".join(f"{count} {what}" for what, count in sorted(sim.checks.counts.items()))
            print(f"seed {seed}: well, trace {sim.world.trace}, {told}", flush=True)
        elif number % PROGRESS == 0:
            took_s = time.monotonic() - began
            print(f"{number} of {given.seeds} seeds, {hours:.0f} simulated hours, {took_s:.0f} s", flush=True)
    print(f"\n{given.seeds - len(broken)} of {given.seeds} seeds well, {hours:.0f} simulated hours")
    if broken:
        name = "LOOPS" if given.loops else "SEED"
        print("violated: " + ", ".join(f"make sim {name}={seed}" for seed in broken))
    print("faults that landed")
    for kind, count in sorted(faults.items()):
        print(f"  {count:>8}  {kind}")
    print("what was looked at")
    for what, count in sorted(counts.items()):
        print(f"  {count:>8}  {what}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
