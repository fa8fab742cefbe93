"""The fleet's GPU classes, as the controller lists them: what the mirror holds sizes against."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from llmgw.v1 import mirror_pb2, operator_pb2
from llmgw_controller.cli.page import Page, wrapped
from llmgw_controller.cli.session import Session
from llmgw_kit.errors import LlmgwError

TIMEOUT_S = 5


@dataclass(frozen=True)
class Fleet:
    """`unknown`: why there is none to hold anything against; None where there is one."""

    classes: tuple[mirror_pb2.FleetGpuClass, ...]
    unknown: str | None = None

    def tell(self, page: Page) -> None:
        """A line where fits could not be checked; silence would read as "fits"."""
        if self.unknown is not None:
            wrapped(
                page, [(" * ", "")], f"whether it fits any GPU of this fleet was not checked: {self.unknown}"
            )


def fleet_of(controller: Session) -> Fleet:
    """Never raises: a mirror is of use without a controller."""
    try:
        answer = controller.look(
            lambda stub: stub.ListNodes(operator_pb2.ListNodesRequest(), timeout=TIMEOUT_S)
        )
    except LlmgwError as e:
        return Fleet((), unknown=e.text)
    classes = tuple(classes_of(answer.nodes))
    return Fleet(classes, unknown=None if classes else "no node has told of a GPU with its memory")


def classes_of(nodes: Iterable[operator_pb2.NodeRow]) -> Iterable[mirror_pb2.FleetGpuClass]:
    """By name. Of a class whose devices differ in memory the smallest counts; of its nodes the largest, and
    how many of those share a fabric. Devices that are unwell now count: they are mended."""
    here = [node for node in nodes if node.state != operator_pb2.NODE_STATE_LOST]
    memory: dict[str, int] = {}
    for node in here:
        for row in node.devices:
            if row.device.HasField("memory_total_bytes"):
                name, size = row.device.gpu_class, row.device.memory_total_bytes
                memory[name] = min(size, memory.get(name, size))
    for name in sorted(memory):
        counts = [sum(row.device.gpu_class == name for row in node.devices) for node in here]
        most = max(counts)
        largest = [node for node, count in zip(here, counts, strict=True) if count == most]
        shared = Counter(fabric for node in largest for fabric in node.fabrics)
        yield mirror_pb2.FleetGpuClass(
            name=name, memory_bytes=memory[name], devices_per_node=most,
            nodes_per_fabric=max(shared.values(), default=1),
        )  # fmt: skip
