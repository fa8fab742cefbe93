"""How long a failed group waits before it is started again."""

import hashlib

from llmgw_controller.core.state import Intervals


def delay_s(name: str, failures: int, intervals: Intervals) -> float:
    """Doubling from the base to the maximum, shortened by up to a fifth.

    The spread is drawn from the name of what failed and the count, not from chance: replicas that failed
    together start apart, and a recorded snapshot still gives the same plan."""
    doublings = min(60, max(0, failures - 1))
    whole: float = min(intervals.backoff_max_s, intervals.backoff_base_s * 2.0**doublings)
    digest = hashlib.sha256(f"{name}#{failures}".encode()).digest()
    return whole * (1 - 0.2 * int.from_bytes(digest[:4], "big") / 2**32)
