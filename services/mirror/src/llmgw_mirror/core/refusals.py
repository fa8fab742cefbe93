"""Refusals that several calls share, with what to do next; a word of its own for each would drift."""

from llmgw_kit.errors import NotFound

FETCH_RETRY = "llmgwctl mirror fetch --retry MODEL@VERSION"
#: After what a file could not be had for. Failed files wait longer each time, unless somebody says otherwise.
FETCH_AGAIN = f"once that is mended: {FETCH_RETRY}"
#: A version never changes what it means, so that a wrong word in it is mended by asking anew.
ASK_ANEW = "where the request was wrong: remove the version, then fetch it with what is right"


def unknown_version(model: str, version: str) -> NotFound:
    """Nobody asked for it, or it was removed."""
    return NotFound(
        f"version {version!r} of {model!r} is not known",
        code="unknown_version",
        next_steps=[
            "what is here: llmgwctl mirror versions",
            "what can be restored: llmgwctl mirror removed",
        ],
    )
