"""What had arrived before a link broke is kept: the next try goes on from there."""

import asyncio
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp.base_protocol import BaseProtocol

from llmgw_agent.adapters.mirror_client import _pieces


async def test_what_came_before_the_break_is_read() -> None:
    loop = asyncio.get_running_loop()
    content = aiohttp.StreamReader(Mock(BaseProtocol), 2**16, loop=loop)
    content.feed_data(b"first ")
    content.feed_data(b"second")
    content.set_exception(aiohttp.ClientPayloadError("cut"))
    got = b""
    with pytest.raises(aiohttp.ClientPayloadError):
        async for piece in _pieces(content):
            got += piece
    assert got == b"first second"
