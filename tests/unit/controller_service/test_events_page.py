"""docs/events.md names every kind of event that is written, and no other."""

import ast
import re
from pathlib import Path

import llmgw_controller
from llmgw_controller.core.heard import DeviceState
from llmgw_controller.core.proposals import HOPELESS_MOST, SUGGESTED_MOST
from llmgw_controller.ledger import CHECK_S

PACKAGE = Path(llmgw_controller.__file__).parent
PAGE = (Path(__file__).parents[3] / "docs" / "events.md").read_text(encoding="utf-8")

#: Where the kind stands among the arguments of what writes one.
CALLS = {"PutEvent": 1, "event": 0, "_note": 1, "commit": 3}
#: Those that are put together: what they can be.
MADE = {
    "device_": {f"device_{one.value}" for one in DeviceState if one is not DeviceState.HEALTHY},
    "model_": {"model_created", "model_changed", "model_pinned", "model_unpinned"},
}


def kinds() -> set[str]:
    found: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        if "cli" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name not in CALLS or len(node.args) <= CALLS[name]:
                continue
            kind = node.args[CALLS[name]]
            if isinstance(kind, ast.Constant) and isinstance(kind.value, str):
                found.add(kind.value)
            elif isinstance(kind, ast.JoinedStr):
                found |= MADE[str(getattr(kind.values[0], "value", ""))]
    return found


def test_every_kind_is_on_the_page_and_no_other():
    table = PAGE.partition("## Suggestions")[0]
    told = {
        kind
        for line in table.split("\n")
        if line.startswith("| `")
        for kind in re.findall(r"`([a-z_]+)`", line.split("|")[1])
    }
    assert told == kinds(), "docs/events.md has one row for every kind: what it means, and what to do"


def test_the_numbers_on_the_page_are_those_of_the_code():
    words = {4: "four", 6: "six"}
    assert f"shows {words[SUGGESTED_MOST]} at most" in PAGE
    assert f"After {words[HOPELESS_MOST]} models" in PAGE
    assert f"every {CHECK_S:.0f} s" in PAGE
