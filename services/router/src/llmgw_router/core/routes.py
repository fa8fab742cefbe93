"""Every path that is relayed to engines, and everything a path needs to be. All else is cold.

One table: what is not in it reaches no engine, and what is in it passes one pipeline (HO30). No route
takes an address, a model's place or a credential from the request (HO28): a model's name, or the id of
a response that a replica holds, is all that a request can choose by.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final


class Dialect(Enum):
    """How a stream of this path ends, and how an interruption is told in it."""

    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"


class Content(Enum):
    """What the body is, and so where the model's name stands in it."""

    JSON = "json"
    #: `multipart/form-data`; the name is the part `model`.
    FORM = "form"
    #: A form where the content type says so, JSON where not.
    EITHER = "either"
    #: None is needed: the path names a response, and the replica that holds it is asked.
    HELD = "held"


# What the data path compares with at each request: a member looked up on its class costs four times a
# global's time.
RESPONSES: Final = Dialect.RESPONSES
JSON: Final = Content.JSON
HELD: Final = Content.HELD


@dataclass(frozen=True, slots=True)
class Route:
    """`path` is normalised; `{id}` in it stands for one segment."""

    path: bytes
    dialect: Dialect = Dialect.CHAT
    content: Content = Content.JSON
    methods: tuple[bytes, ...] = (b"POST",)
    #: What `Allow` says.
    allow: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "allow", b", ".join(self.methods))


_GET = (b"GET", b"HEAD")

ROUTES: tuple[Route, ...] = (
    Route(b"/v1/chat/completions"),
    Route(b"/v1/completions"),
    Route(b"/v1/embeddings"),
    Route(b"/v1/responses", Dialect.RESPONSES),
    Route(b"/v1/responses/{id}", Dialect.RESPONSES, Content.HELD, (*_GET, b"DELETE")),
    Route(b"/v1/responses/{id}/cancel", Dialect.RESPONSES, Content.HELD),
    Route(b"/v1/responses/{id}/input_items", Dialect.RESPONSES, Content.HELD, _GET),
    Route(b"/v1/messages", Dialect.MESSAGES),
    Route(b"/v1/messages/count_tokens", Dialect.MESSAGES),
    Route(b"/v1/moderations"),
    # These have no place in OpenAI's API; engines serve them at the root, under /v1, or both.
    Route(b"/rerank"),
    Route(b"/v1/rerank"),
    Route(b"/v2/rerank"),
    Route(b"/score"),
    Route(b"/v1/score"),
    Route(b"/classify"),
    Route(b"/v1/classify"),
    Route(b"/pooling"),
    Route(b"/v1/pooling"),
    Route(b"/tokenize"),
    Route(b"/v1/tokenize"),
    Route(b"/detokenize"),
    Route(b"/v1/detokenize"),
    Route(b"/v1/audio/speech"),
    Route(b"/v1/audio/transcriptions", content=Content.FORM),
    Route(b"/v1/audio/translations", content=Content.FORM),
    Route(b"/v1/images/generations"),
    Route(b"/v1/images/edits", content=Content.EITHER),
    Route(b"/v1/images/variations", content=Content.FORM),
)

#: Paths without a variable part: looked up first, and nearly always found.
HOT: dict[bytes, Route] = {route.path: route for route in ROUTES if b"{" not in route.path}

_RESPONSES = b"/v1/responses/"
_HELD: dict[bytes, Route] = {
    route.path.removeprefix(_RESPONSES + b"{id}"): route for route in ROUTES if route.content is Content.HELD
}


def find(path: bytes) -> Route | None:
    """The route of a normalised path; None: not for engines."""
    route = HOT.get(path)
    if route is None and path.startswith(_RESPONSES):
        _, slash, rest = path[len(_RESPONSES) :].partition(b"/")
        route = _HELD.get(slash + rest)
    return route


def response_id(path: bytes) -> bytes:
    """The id in the path of a HELD route."""
    return path[len(_RESPONSES) :].partition(b"/")[0]
