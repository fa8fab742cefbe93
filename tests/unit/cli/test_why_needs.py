"""What a replica needs is told once, in the unit of the bars beside it."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller import wire_explained
from llmgw_controller.cli.page import Page
from llmgw_controller.cli.views import why as view
from llmgw_controller.core.activity import Verdicts
from llmgw_controller.core.why import why
from tests.unit.controller.build import NOW, model, node, profile, snapshot

MEMORY = 20_000_000_000


def test_the_memory_that_why_names_stands_once_and_in_the_unit_of_the_bars() -> None:
    wanted = model("m", profile("p", memory_bytes=MEMORY), replicas=1)
    found = why(snapshot([wanted], [node("n1")]), Verdicts(), wanted, NOW)
    page = Page()
    view.render(page, wire_explained.why(found, pb.ViewInfo(at_unix_s=NOW), None))
    (needs,) = [line for line in page.plain().splitlines() if line.startswith("NEEDS")]
    assert needs == "NEEDS   1 node with 1 L4 free, 20 GB on each GPU (declared) (profile p)"
