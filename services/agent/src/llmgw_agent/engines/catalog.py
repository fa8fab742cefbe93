"""Engines by name. A new one is one file and one line here."""

from llmgw_agent.engines.base import Engine
from llmgw_agent.engines.command import Command
from llmgw_agent.engines.llamacpp import LlamaCpp
from llmgw_agent.engines.sglang import Sglang
from llmgw_agent.engines.vllm import Vllm
from llmgw_kit.errors import InvalidRequest
from llmgw_kit.names import did_you_mean

_ALL: tuple[Engine, ...] = (LlamaCpp(), Vllm(), Sglang(), Command())
ENGINES: dict[str, Engine] = {engine.name: engine for engine in _ALL}


def engine_named(name: str) -> Engine:
    """Raises InvalidRequest naming the nearest known one."""
    engine = ENGINES.get(name)
    if engine is None:
        raise InvalidRequest(
            f"unknown engine {name!r}{did_you_mean(name, ENGINES)}",
            next_steps=[f"known: {', '.join(ENGINES)}"],
        )
    return engine
