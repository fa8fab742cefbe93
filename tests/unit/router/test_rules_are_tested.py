"""Every wire rule W01 to W62 and every public failure HO01 to HO30 has a test that names it.

A test names a rule in its name (`..._w37`) or its docstring (`W37`). Which test that is, this one can print:
`python -m tests.unit.router.test_rules_are_tested`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_TESTS = Path(__file__).parents[2]
_FOLDERS = ("unit/router", "unit/router_supervisor", "integration/router", "integration/router_supervisor")
_NAMED = re.compile(r"(?<![A-Za-z0-9])(W\d\d|HO\d\d)(?!\d)")
_RANGE = re.compile(r"\b(W|HO)(\d\d) to (?:W|HO)(\d\d)\b")

#: Quotas and rates of tenants have an issue of their own; so has the dashboard.
LATER = {"W07", "W08", "W09", "W61", "HO27"}
RULES = {f"W{n:02}" for n in range(1, 63)} | {f"HO{n:02}" for n in range(1, 31)}


def _tests() -> Iterator[tuple[str, str]]:
    """(where, what its name and docstring say) of every test."""
    for folder in _FOLDERS:
        for path in sorted((_TESTS / folder).glob("test_*.py")):
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                    words = node.name.replace("_", " ").upper() + " " + (ast.get_docstring(node) or "")
                    yield f"{folder}/{path.name}::{node.name}", words


def ledger() -> dict[str, list[str]]:
    """Rule -> the tests that name it."""
    found: dict[str, list[str]] = {}
    for where, words in _tests():
        rules = set(_NAMED.findall(words))
        for kind, first, last in _RANGE.findall(words):
            rules |= {f"{kind}{n:02}" for n in range(int(first), int(last) + 1)}
        for rule in rules:
            found.setdefault(rule, []).append(where)
    return dict(sorted(found.items()))


def test_every_rule_has_a_test_that_names_it() -> None:
    assert sorted(RULES - LATER - ledger().keys()) == []


def test_no_test_names_a_rule_that_does_not_exist() -> None:
    assert sorted(ledger().keys() - RULES) == []


if __name__ == "__main__":
    for rule, where in ledger().items():
        print(rule, *where, sep="\n  ")
