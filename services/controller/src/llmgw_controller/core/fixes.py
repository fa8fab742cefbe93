"""Fixes: what could be done so that a replica finds its place, each tried on the pass before it is named.

A fix that does not help is not told.
"""

from collections.abc import Iterator

from llmgw_controller.core.activity import Verdicts
from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.claims import Rooms
from llmgw_controller.core.explain import Explanation, Fit, Reason
from llmgw_controller.core.fix import Fix
from llmgw_controller.core.fixes_back import nodes_of, taken_back, taken_back_together
from llmgw_controller.core.fixes_drain import evictions
from llmgw_controller.core.hearing import last_seen
from llmgw_controller.core.question import Question, ask, heard_again
from llmgw_controller.core.words import counted, lasting

#: Silent nodes tried each for being heard again.
NODES_TRIED = 4


def fixes(
    asked: Question,
    profile: Profile,
    told: Explanation,
    found: Rooms,
    verdicts: Verdicts,
    now: float,
) -> tuple[Fix, ...]:
    """Those that help, cheapest first; what only waiting brings comes last."""
    if told.fit is Fit.NOW:
        return ()
    helpful = [*evictions(asked, profile, told, found, verdicts, now), *taken_back(asked, profile, told, now)]
    if not helpful:
        helpful = list(taken_back_together(asked, profile, told, verdicts, now))
    helpful += _silent(asked, told, now)
    return tuple(sorted(helpful, key=lambda fix: fix.command is None))


def _silent(asked: Question, told: Explanation, now: float) -> Iterator[Fix]:
    for node_id in nodes_of(told, Reason.UNREACHABLE)[:NODES_TRIED]:
        answer = ask(heard_again(asked, node_id, now), now)
        if answer is not None and answer.placed:
            left_s = last_seen(asked.snapshot, node_id) + asked.snapshot.intervals.lost_after_s - now
            until = f"; it is lost in {lasting(left_s)}" if left_s > 0 else ""
            yield Fix(None, f"wait: it is placed when {node_id} is heard again{until}")


def other_classes(model: Model, found: Rooms) -> tuple[Fix, ...]:
    """Classes that no profile of the model names and that have as many GPUs free on one node."""
    named = {profile.gpu_class for profile in model.profiles}
    needed = min(profile.gpus for profile in model.profiles)
    best: dict[str, tuple[int, str]] = {}
    for node_id, room in found.items():
        if not room.takes_work:
            continue
        free: dict[str, int] = {}
        for device in room.devices:
            if device.use.value == "free" and device.gpu_class not in named:
                free[device.gpu_class] = free.get(device.gpu_class, 0) + 1
        for gpu_class, count in free.items():
            if count > best.get(gpu_class, (0, ""))[0]:
                best[gpu_class] = (count, node_id)
    return tuple(
        Fix(None, f"{gpu_class}: {counted(count, 'GPU')} free on {node_id}; the model has no profile for it")
        for gpu_class, (count, node_id) in sorted(best.items())
        if count >= needed
    )
