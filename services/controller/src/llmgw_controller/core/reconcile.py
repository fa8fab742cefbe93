"""One pass: from what is known and the time to what is to change. Pure, level-triggered, idempotent.

Each subject looks at all rows; the round is repeated until nothing moves, so a second pass over the
rows as this plan leaves them changes nothing (commands said again excepted: `repeats.py`).
"""

from llmgw_controller.core.activation import close_decided
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.eviction import begin
from llmgw_controller.core.groups import advance
from llmgw_controller.core.idleness import verdicts, verdicts_again
from llmgw_controller.core.making_room import close, settle
from llmgw_controller.core.nodes import judge
from llmgw_controller.core.placing import place_waiting
from llmgw_controller.core.plan import Plan
from llmgw_controller.core.regret import note_regrets
from llmgw_controller.core.repeats import repeat
from llmgw_controller.core.scale import adjust
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.strangers import adopt

#: A replica takes at most a handful of steps at one moment; more is two subjects undoing each other.
MAX_ROUNDS = 50


def reconcile(snapshot: Snapshot, now: float) -> Plan:
    """Raises AssertionError when the subjects do not come to rest: a bug, with the last plan in the text."""
    draft = Draft(snapshot, now, verdicts(snapshot, now))
    judged = snapshot.stored
    for _ in range(MAX_ROUNDS):
        moves = draft.moves
        judge(draft)
        adopt(draft)
        advance(draft)
        adjust(draft)
        settle(draft)
        left = place_waiting(draft)
        close(draft)
        begin(draft, left)
        note_regrets(draft)
        close_decided(draft)
        if draft.moves == moves:
            repeat(draft)
            return draft.plan()
        # What became ready in this round is judged in the next as a second pass would judge it.
        draft.verdicts = verdicts_again(draft.snapshot, judged, draft.verdicts, now)
        judged = draft.stored
    raise AssertionError(f"no rest after {MAX_ROUNDS} rounds: {draft.plan().changes[-10:]}")
