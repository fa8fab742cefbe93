"""`usage:` of the router: whether engines are asked what requests have used."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator


def _words(value: Any) -> Any:
    # YAML 1.1 reads a bare `off` as a boolean.
    return {False: "off", True: "asked"}.get(value, value) if isinstance(value, bool) else value


Usage = Annotated[Literal["asked", "told", "off"], BeforeValidator(_words)]
