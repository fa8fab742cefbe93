"""One event for each change of a device's health, and none for anything else."""

from dataclasses import replace

from llmgw_controller.core.device_news import device_news
from llmgw_controller.core.heard import DeviceFault, DeviceState, FaultClass
from llmgw_controller.core.plan import Severity
from tests.unit.controller.build import NOW, device, node

ROW = node("n1", gpus=2)
FINE = tuple(device(one) for one in ROW.devices)
LOST = DeviceFault(FaultClass.FATAL, "xid_79", "the GPU has fallen off the bus", 50.0)
BROKEN = replace(FINE[1], state=DeviceState.UNHEALTHY, reason="xid_79", since=50.0, fault=LOST)


def told(before, after):
    return [(one.kind, one.subject, one.text, one.severity) for one in device_news("n1", before, after, NOW)]


def test_a_fault_is_told_with_what_it_asks_for_and_its_end_with_how_long_it_lasted():
    assert told(FINE, (FINE[0], BROKEN)) == [
        (
            "device_unhealthy", "n1:1", "xid_79: the GPU has fallen off the bus; needs a reset or a repair",
            Severity.TROUBLE,
        )
    ]  # fmt: skip
    healed = replace(FINE[1], since=170.0, fault=LOST)
    assert told((FINE[0], BROKEN), (FINE[0], healed)) == [
        ("device_healed", "n1:1", "healthy again after 2 m 00 s; it was unhealthy: xid_79", Severity.NOTE)
    ]


def test_a_worse_reason_is_news_and_readings_are_not():
    gone = replace(BROKEN, state=DeviceState.MISSING)
    assert [kind for kind, *_ in told((BROKEN,), (gone,))] == ["device_missing"]
    other = replace(BROKEN, reason="xid_48")
    assert told((BROKEN,), (other,))[0][2] == "xid_48"
    assert told((BROKEN,), (replace(BROKEN, temperature_celsius=90.0, notes=("hot",)),)) == []


def test_what_a_node_says_at_first_and_what_it_no_longer_tells_is_no_news():
    assert told((), (BROKEN,)) == []
    assert told((BROKEN,), ()) == []
    clockless = replace(FINE[1], since=None)
    assert told((replace(BROKEN, reason=None),), (clockless,))[0][2] == (
        "healthy again; it was unhealthy: no reason told"
    )
