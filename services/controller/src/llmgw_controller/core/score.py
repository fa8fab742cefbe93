"""Score: which of the nodes that fit is taken. Lower is better; docs/placement.md tells it to operators."""

from llmgw_controller.core.catalog import Model, Spread
from llmgw_controller.core.claims import Room, Use
from llmgw_controller.core.filters import Ask

#: Of the score, what does not depend on the model: a whole node of a fabric is broken up for less than a
#: gang; a whole node is broken up and something stays of it; a fabric is used by what needs none; what stays
#: free.
Fullness = tuple[bool, bool, bool, int]

Score = tuple[int, ...]


def score(model: Model, room: Room, full: Fullness, *, rests: bool) -> Score:
    """A node where the replica failed lately comes last. Then weights that are here already, whole nodes left
    whole, the fullest node, few replicas of the same model: one node's end should not take them all. A model
    that is to be spread puts that last point before all others, for what runs has brought weights along."""
    missing = model.weights is not None and (model.name, model.weights.version) not in room.weights
    same = next((count for name, count in room.models if name == model.name), 0)
    if model.spread is Spread.SPREAD:
        return rests, same, missing, *full
    return rests, missing, *full, same


def fullness(ask: Ask, room: Room) -> Fullness:
    """Only whole nodes can take a gang, or a replica that fills one: broken ones are filled first."""
    free = sum(device.use is Use.FREE for device in room.devices)
    whole = free == len(room.devices)
    alone = not ask.gang
    on_fabric = alone and bool(room.node.fabrics)
    stays = free - ask.gpus_on(room)
    return on_fabric and whole, alone and whole and stays > 0, on_fabric, stays
