"""What every call of the service is held to, whatever it is: text that can be stored, numbers that are some,
and not more of it than anybody needs. In one place, so that a new call cannot forget it."""

from __future__ import annotations  # grpc.aio's generics exist in its type stubs only

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

from google.protobuf.descriptor import FieldDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from llmgw_kit.errors import InvalidRequest
from llmgw_kit.text import is_storable
from llmgw_mirror.core.bounds import (
    REQUEST_MAX_BYTES,
    URL_MAX_CHARS,
    check_asked_by,
    is_time,
)


def check_call(request: Message) -> None:
    """Raises InvalidRequest."""
    if (size := request.ByteSize()) > REQUEST_MAX_BYTES:
        raise InvalidRequest(
            f"the request has {size} bytes; at most {REQUEST_MAX_BYTES} are taken",
            next_steps=["name fewer files at once, or files with shorter URLs"],
        )
    for name, value in _said(request):
        if isinstance(value, float) and not is_time(value):
            raise InvalidRequest(
                f"{name} is {value}, which is no time",
                next_steps=["give seconds since 1970, up to the year 9999"],
            )
        if isinstance(value, str) and not (len(value) <= URL_MAX_CHARS and is_storable(value)):
            raise InvalidRequest(
                f"{name} has {len(value)} characters; expected at most {URL_MAX_CHARS}, and no NUL",
                next_steps=["give what can be stored and shown"],
            )
        if name == "asked_by":
            check_asked_by(value)


def _said(message: Message) -> Iterator[tuple[str, Any]]:
    """All that is set, to the innermost; times are the only numbers with fractions in requests."""
    for field, value in message.ListFields():
        inside = field.type == FieldDescriptor.TYPE_MESSAGE
        for one in value if field.is_repeated else (value,):
            if inside:
                yield from _said(one)
            else:
                yield field.name, one


def checking(service: ServiceDescriptor) -> Callable[[type[Any]], type[Any]]:
    """For a servicer's class: each call of the service is checked before it is begun."""

    def held(servicer: type[Any]) -> type[Any]:
        for method in service.methods:
            call = getattr(servicer, method.name)
            setattr(servicer, method.name, (_many if method.server_streaming else _one)(call))
        return servicer

    return held


def _one(call: Any) -> Any:
    @functools.wraps(call)
    async def checked(self: Any, request: Message, context: Any) -> Any:
        check_call(request)
        return await call(self, request, context)

    return checked


def _many(call: Any) -> Any:
    @functools.wraps(call)
    async def checked(self: Any, request: Message, context: Any) -> AsyncIterator[Any]:
        check_call(request)
        async with aclosing(call(self, request, context)) as answers:
            async for answer in answers:
                yield answer

    return checked
