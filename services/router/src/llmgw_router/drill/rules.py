"""The list of rules that a drill tries, in order of their numbers."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from llmgw_router.drill.wire import Router

Try = Callable[[Router], Awaitable[None]]


@dataclass(frozen=True)
class Rule:
    """One rule of the wire. `number` is that of docs/router-wire.md's rules."""

    number: str
    title: str
    #: Raises Broken when the rule does not hold.
    attempt: Try
    #: Others would feel its effects for a while: tried last.
    disturbs: bool = False


RULES: list[Rule] = []


def rule(number: str, title: str, *, disturbs: bool = False) -> Callable[[Try], Try]:
    """Add a rule to the list."""

    def add(attempt: Try) -> Try:
        RULES.append(Rule(number, title, attempt, disturbs))
        return attempt

    return add


def chunk(payload: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


#: What closes a chunked body.
LAST = b"0\r\n\r\n"
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(number: int, text: str = "lamp") -> bytes:
    """One event of a chat stream."""
    return (
        b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":'
        b'[{"index":0,"delta":{"content":"%b %d"},"finish_reason":null}]}\n\n' % (text.encode(), number)
    )
