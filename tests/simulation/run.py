"""Run seeds by hand: `python -m tests.simulation.run --seed 41 --hours 1`, or `--seeds 1000` from there on.

Prints each seed's trace, and on a violation its text, the last events, and what to type to see it again.
"""

import argparse
import sys
import time

from tests.simulation.checks import Violation
from tests.simulation.sim import simulate


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first, or the only one")
    parser.add_argument("--seeds", type=int, default=1, help="how many, counting up")
    parser.add_argument("--hours", type=float, default=1 / 3, help="simulated, before the faults end")
    given = parser.parse_args(arguments)
    broken = 0
    for seed in range(given.seed, given.seed + given.seeds):
        started = time.monotonic()
        try:
            sim = simulate(seed, minutes=given.hours * 60)
        except Violation as found:
            broken += 1
            print(f"seed {seed}: {found}", flush=True)
            continue
        counts = ", ".join(f"{count} {what}" for what, count in sorted(sim.checks.counts.items()))
        took_s = time.monotonic() - started
        print(f"seed {seed}: well, trace {sim.world.trace}, {took_s:.1f} s, {counts}", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
