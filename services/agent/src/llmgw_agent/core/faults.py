"""What a GPU's faults mean: one table, three classes, and what each class asks for.

NVIDIA's numbers and their meaning: "XID Errors" (docs.nvidia.com/deploy/xid-errors), its pages "Working with
Xid Errors" and "Analyzing Xid Errors with the Xid Catalog" (columns *Description* and *Resolution Bucket,
Immediate Action*), and the "GPU Debug Guidelines". How the vendor's action becomes a class:

    RESTART_APP, IGNORE                     app      the program's own doing; the device is healthy
    what may pass, or follows another fault suspect  unhealthy until it was quiet for a while
    RESET_GPU, RESTART_BM, CONTACT_SUPPORT  fatal    unhealthy until a reset was seen

A number nobody here has heard of is *suspect*: neither trusted for ever nor given up for ever.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class FaultClass(Enum):
    """How bad it is, which decides what follows."""

    APP = "app"
    SUSPECT = "suspect"
    FATAL = "fatal"


@dataclass(frozen=True)
class Fault:
    """Something that went wrong with a device. `at` is unix seconds by this node's clock."""

    fault_class: FaultClass
    #: Stable word: "xid_79", "row_remap_failed", ...
    reason: str
    #: For people.
    text: str
    at: float


_A, _S, _F = FaultClass.APP, FaultClass.SUSPECT, FaultClass.FATAL

XIDS: Mapping[int, tuple[FaultClass, str]] = {
    8: (_A, "a program's work did not end in time"),
    13: (_A, "graphics engine exception, usually the program's own"),
    31: (_A, "a program used memory that is not its own"),
    32: (_S, "corrupt stream of commands: the program, the driver or the bus"),
    38: (_S, "driver firmware error"),
    43: (_A, "a program's channel was reset after its own error"),
    45: (_A, "a program's channels were removed, because it ended or after another fault"),
    48: (_F, "uncorrectable memory error (double bit)"),
    61: (_S, "internal microcontroller warning"),
    62: (_F, "internal microcontroller halted"),
    63: (_S, "a memory row is to be remapped, or a page was retired; a reset makes it so"),
    64: (_F, "a memory row could not be remapped, or a page not be retired"),
    68: (_A, "video decoder exception"),
    69: (_A, "graphics engine class error, usually the program's own"),
    74: (_F, "NVLink error"),
    79: (_F, "the GPU has fallen off the bus"),
    92: (_S, "many correctable memory errors"),
    # Contained: the one program it met must be restarted, and others may go on until a reset suits.
    94: (_S, "memory error, contained to one program"),
    95: (_F, "memory error, not contained: no program may start before a reset"),
    109: (_S, "a switch between programs did not end in time"),
    110: (_F, "security fault"),
    119: (_F, "the GPU's system processor (GSP) does not answer"),
    120: (_F, "the GPU's system processor (GSP) failed"),
    121: (_S, "corrected error on the link to the CPU"),
    136: (_F, "a link could not be trained"),
    137: (_A, "a program used NVLink memory that is not its own"),
    140: (_F, "memory error that could not be recovered from"),
    143: (_F, "the GPU could not be started"),
    # NVLink since Blackwell: 144 to 150, one for each part of the link.
    **dict.fromkeys(range(144, 151), (_F, "NVLink error")),
    # Says that what is to be done has changed; that itself is read with every look at the device.
    154: (_A, "the driver's advice on recovery has changed"),
    158: (_F, "a step of the GPU did not end in time"),
}


def xid(code: int, at: float) -> Fault:
    """What the driver's event means."""
    fault_class, text = XIDS.get(code, (_S, "not in the list this release knows"))
    return Fault(fault_class, f"xid_{code}", text, at)


#: Faults that are read, not told: each stands for as long as the device shows it.
SIGNS: Mapping[str, tuple[FaultClass, str]] = {
    "row_remap_failed": (_F, "a memory row could not be remapped: the GPU needs repair"),
    "reset_required": (_F, "the driver asks for a reset of the GPU"),
    "reboot_required": (_F, "the driver asks for a reboot of the node"),
    "ecc_uncorrectable": (_S, "uncorrectable memory errors were counted"),
    "driver_silent": (_S, "the driver does not answer"),
}


def sign(reason: str, at: float) -> Fault:
    """A fault that was read. A word that is not in the table is suspect, like an unknown number."""
    fault_class, text = SIGNS.get(reason, (_S, reason.replace("_", " ")))
    return Fault(fault_class, reason, text, at)


def named(reason: str, at: float) -> Fault:
    """By its word alone: "xid_79", "row_remap_failed", or anything."""
    number = reason.removeprefix("xid_")
    return xid(int(number), at) if number != reason and number.isdecimal() else sign(reason, at)
