"""What is written down when a device changes: one event a change, none for what a node says at first."""

from collections.abc import Iterable, Iterator

from llmgw_controller.core.heard import DeviceReport, DeviceState, FaultClass
from llmgw_controller.core.plan import PutEvent, Severity
from llmgw_controller.core.words import lasting
from llmgw_kit.ids import NodeId

#: What the class of a fault asks for.
_ASKS = {
    FaultClass.SUSPECT: "used again when it was quiet for a while",
    FaultClass.FATAL: "needs a reset or a repair",
}


def device_news(
    node_id: NodeId, before: Iterable[DeviceReport], after: Iterable[DeviceReport], now: float
) -> Iterator[PutEvent]:
    """In order of index. A device that is no longer told at all is the inventory's matter."""
    known = {one.device_id: one for one in before}
    for one in sorted(after, key=lambda device: (device.index, device.device_id)):
        was = known.get(one.device_id)
        if was is None or (was.state, was.reason) == (one.state, one.reason):
            continue
        subject = f"{node_id}:{one.index}"
        if one.state is DeviceState.HEALTHY:
            yield PutEvent(now, "device_healed", subject, _healed(was, one), Severity.NOTE)
        else:
            yield PutEvent(now, f"device_{one.state.value}", subject, _broken(one), Severity.TROUBLE)


def _healed(was: DeviceReport, one: DeviceReport) -> str:
    """How long it lasted is the node's own measure: both times are of its clock."""
    held = was.since is not None and one.since is not None and one.since >= was.since
    for_ = f" after {lasting((one.since or 0.0) - (was.since or 0.0))}" if held else ""
    return f"healthy again{for_}; it was {was.state.value}: {was.reason or 'no reason told'}"


def _broken(one: DeviceReport) -> str:
    reason = one.reason or "no reason told"
    if one.fault is None or one.fault.reason != one.reason:
        return reason
    asks = _ASKS.get(one.fault.fault_class)
    return f"{reason}: {one.fault.text}" + (f"; {asks}" if asks else "")
