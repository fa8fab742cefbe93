"""How a call that failed is told: lines for people, or under `--output json` one object on stderr, so that
a pipe from stdout never reads an error as an answer.
"""

import json
import sys
from collections.abc import Sequence

from llmgw_controller.cli.client import NoController
from llmgw_controller.cli.exits import EXIT_NO_DATA, EXIT_TROUBLE, EXIT_USAGE
from llmgw_controller.cli.page import WIDTH
from llmgw_kit.errors import InvalidRequest, LlmgwError, NotFound, Unavailable
from llmgw_kit.lifecycle import print_error

SCHEMA = "llmgw.error/1"


def exit_of(error: LlmgwError) -> int:
    """The exit status that an error of the taxonomy ends with."""
    match error:
        case NoController() | Unavailable():
            return EXIT_NO_DATA
        case InvalidRequest() | NotFound():
            return EXIT_USAGE
        case _:
            return EXIT_TROUBLE


def as_json(error: LlmgwError, *, command: Sequence[str] | None = None) -> dict[str, object]:
    """What happened, to what was typed, and what to do next. Names are only ever added to.

    `retry_after_seconds` is null where nobody knows; `command` is null in a watched stream."""
    # Of a usage error the lines below the first say what to type instead.
    first, *below = [line.strip() for line in error.text.split("\n")]
    return {
        "schema": SCHEMA,
        "code": error.code,
        "error": first,
        "next_steps": [line for line in (*below, *error.next_steps) if line],
        "retry_after_seconds": error.retry_after_s if isinstance(error, Unavailable) else None,
        "command": None if command is None else list(command),
        "exit_code": exit_of(error),
    }


def tell(error: LlmgwError, words: Sequence[str]) -> int:
    """On stderr, for who typed `words`; what to exit with."""
    if wants_json(words):
        # In ASCII: words that are not UTF-8 are told too, and nothing in it moves a cursor.
        print(json.dumps(as_json(error, command=words)), file=sys.stderr)
    else:
        # In a file or a pipe a line stays one, for whoever looks for words in it.
        print_error(error, width=WIDTH if sys.stderr.isatty() else None)
    return exit_of(error)


def wants_json(words: Sequence[str]) -> bool:
    """Read from the words themselves: where they cannot be parsed, nothing else knows."""
    wanted = ""
    mine = words[: words.index("--")] if "--" in words else words
    for word, following in zip(mine, [*mine, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if name == "--output":
            wanted = value if equals else following
    return wanted == "json"
