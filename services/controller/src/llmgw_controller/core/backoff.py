"""How long a failed group waits before it is started again."""

import hashlib

from llmgw_controller.core.state import Intervals
from llmgw_kit.ids import ReplicaId


def delay_s(replica_id: ReplicaId, failures: int, intervals: Intervals) -> float:
    """Doubling from the base to the maximum, shortened by up to a fifth.

    The spread is drawn from the replica's name and count, not from chance: replicas that failed together
    start apart, and a recorded snapshot still gives the same plan."""
    whole: float = min(intervals.backoff_max_s, intervals.backoff_base_s * 2.0 ** max(0, failures - 1))
    digest = hashlib.sha256(f"{replica_id}#{failures}".encode()).digest()
    return whole * (1 - 0.2 * int.from_bytes(digest[:4], "big") / 2**32)
