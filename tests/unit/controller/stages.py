"""Stages that several files of tests begin with."""

from llmgw_controller.core.rows import Phase
from tests.unit.controller.build import Stage, node, replica, shard, snapshot


def ready_stage(one, count=1, gpus=2, **changes):
    """One node a replica, all ready."""
    nodes = [node(f"n{number}", gpus) for number in range(1, count + 1)]
    rows = [
        replica(one, number, Phase.READY, shard(f"m/{number}", f"n{number}", 0))
        for number in range(1, count + 1)
    ]
    return Stage(snapshot([one], nodes, rows, **changes))
