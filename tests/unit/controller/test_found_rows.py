"""What `Stored` finds of its rows once is true after any change, whether carried over or found anew."""

from dataclasses import replace

from hypothesis import given

from llmgw_controller.core.apply import apply
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.state import Stored
from tests.unit.controller.build import NOW
from tests.unit.controller.worlds import fleets


def found(stored: Stored) -> tuple[object, ...]:
    return stored.sorted_replicas, stored.by_model, stored.by_node, stored.stones


@given(fleets())
def test_what_is_carried_over_is_what_would_be_found(snap):
    stored = replace(snap.stored)
    for change in reconcile(snap, NOW).changes:
        found(stored)  # So that there is something to carry over.
        stored = apply(stored, (change,))
        assert found(stored) == found(replace(stored))
