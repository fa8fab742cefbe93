"""What can go wrong, sorted by what the caller should do about it.

Each error tells what happened and to what (`text`), in a word programs can test (`code`), and what
to do next (`next_steps`). Edges map them once: gRPC in `rpc.py`, HTTP where the answer is written.
A bug is none of these; it stays an ordinary exception and is told as internal.
"""

from collections.abc import Iterable


class LlmgwError(Exception):
    """Base of what a caller is told. `text` ends without a full stop where a code follows it."""

    code_default = "error"

    def __init__(self, text: str, *, code: str | None = None, next_steps: Iterable[str] = ()) -> None:
        super().__init__(text)
        self.text = text
        self.code = code or self.code_default
        self.next_steps = tuple(next_steps)

    def lines(self) -> list[str]:
        """For a terminal: what happened, then one indented line a step."""
        return [self.text, *(f"  {step}" for step in self.next_steps)]


class InvalidRequest(LlmgwError):
    """The caller must change what it asks."""

    code_default = "invalid_request"


class Denied(LlmgwError):
    """Authenticate, or ask somebody who may."""

    code_default = "denied"


class NotFound(LlmgwError):
    """Stop asking for it."""

    code_default = "not_found"


class Conflict(LlmgwError):
    """The world moved: read again, decide again."""

    code_default = "conflict"


class NotLeader(Conflict):
    """This controller stands by; `leader_address` (HOST:PORT) is who to ask, None when nobody leads."""

    code_default = "not_leader"

    def __init__(self, text: str, *, leader_address: str | None, next_steps: Iterable[str] = ()) -> None:
        super().__init__(text, next_steps=next_steps)
        self.leader_address = leader_address


class NotConfigured(LlmgwError):
    """The service was not told what this call needs; asking again changes nothing, a setting does."""

    code_default = "not_configured"


class Unavailable(LlmgwError):
    """Try again; after `retry_after_s` where somebody knows."""

    code_default = "unavailable"

    def __init__(
        self,
        text: str,
        *,
        code: str | None = None,
        retry_after_s: float | None = None,
        next_steps: Iterable[str] = (),
    ) -> None:
        super().__init__(text, code=code, next_steps=next_steps)
        self.retry_after_s = retry_after_s


class StartupError(LlmgwError):
    """The service cannot start as configured. `main` prints it and exits with `exit_status`."""

    code_default = "startup"

    def __init__(self, text: str, *, next_steps: Iterable[str] = (), exit_status: int = 1) -> None:
        super().__init__(text, next_steps=next_steps)
        self.exit_status = exit_status
