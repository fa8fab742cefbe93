"""Which paths are relayed to engines, and how each one's streams speak. Everything else is cold."""

from enum import Enum


class Dialect(Enum):
    """How a stream of this path ends, and how an interruption is told in it."""

    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"


#: Normalised path -> dialect. A hot path more is a line more.
HOT: dict[bytes, Dialect] = {
    b"/v1/chat/completions": Dialect.CHAT,
    b"/v1/completions": Dialect.CHAT,
    b"/v1/embeddings": Dialect.CHAT,
    b"/v1/responses": Dialect.RESPONSES,
    b"/v1/messages": Dialect.MESSAGES,
    b"/v1/rerank": Dialect.CHAT,
    b"/v1/score": Dialect.CHAT,
    b"/v1/tokenize": Dialect.CHAT,
    b"/v1/detokenize": Dialect.CHAT,
}

#: What `Allow` says for every one of them.
HOT_METHODS = b"POST"
