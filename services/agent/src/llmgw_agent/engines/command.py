"""Any program that serves HTTP: its command line with placeholders."""

import re

from llmgw_agent.core.spec import ShardSpec
from llmgw_agent.engines.base import Launch, Surroundings
from llmgw_agent.engines.llamacpp import LlamaCpp
from llmgw_agent.engines.sglang import Sglang
from llmgw_agent.engines.vllm import Vllm
from llmgw_kit.errors import InvalidRequest
from llmgw_kit.names import did_you_mean

#: `{word}` or `{word:word}`. JSON in an argument (`{"a": 1}`, `{}`) is left alone, and `{{port}}` is a
#: literal `{port}`.
_PLACEHOLDER = re.compile(r"\{\{[a-z_]+(?::[\w-]+)?\}\}|\{([a-z_]+)(?::([\w-]+))?\}")

_KNOWN = (
    "port", "model_path", "served_name", "host", "shard_id", "rank", "world_size", "head_address",
    "context_length",
)  # fmt: skip


class Command:
    """A gauge or a credential cannot be promised for a program we do not know."""

    name = "command"
    supports_credential = False
    #: Whatever it is a wrapper of.
    gauge_series = (*LlamaCpp.gauge_series, *Vllm.gauge_series, *Sglang.gauge_series)
    gauge_promised = False
    work_series = (*LlamaCpp.work_series, *Vllm.work_series, *Sglang.work_series)
    version_asks = (*Vllm.version_asks, *LlamaCpp.version_asks, *Sglang.version_asks)

    def launch(self, spec: ShardSpec, around: Surroundings) -> Launch:
        """`spec.command` then `spec.args`, filled in. Raises InvalidRequest for an unknown placeholder."""
        if not spec.command:
            raise InvalidRequest(f"engine command needs a command, and shard {spec.shard_id} names none")
        return Launch(tuple(fill(part, spec, around) for part in (*spec.command, *spec.args)))

    def ready_path(self, spec: ShardSpec) -> str | None:
        """As the profile says; without one, what most servers have."""
        return None if spec.http_port is None else spec.ready_path or "/health"


def fill(text: str, spec: ShardSpec, around: Surroundings) -> str:
    """One argument with its placeholders replaced."""

    def value(match: re.Match[str]) -> str:
        word, name = match.group(1), match.group(2)
        if word is None:
            return match.group(0)[1:-1]
        if word not in _KNOWN or (name is not None and word != "port"):
            shown = match.group(0)
            raise InvalidRequest(
                f"shard {spec.shard_id}: unknown placeholder {shown}{did_you_mean(word, _KNOWN)}",
                next_steps=[
                    f"known: {', '.join('{' + k + '}' for k in _KNOWN)}, {{port:NAME}}; literal: {{{shown}}}"
                ],
            )
        return _value(word, name, spec, around)

    return _PLACEHOLDER.sub(value, text)


def _value(word: str, name: str | None, spec: ShardSpec, around: Surroundings) -> str:
    found: object
    if word == "port":
        found = spec.ports.get(name or "http")
    else:
        found = {
            "model_path": around.model_path, "served_name": spec.served_name, "host": around.listen_host,
            "shard_id": spec.shard_id, "rank": spec.rank, "world_size": spec.world_size,
            "head_address": spec.head_address, "context_length": spec.context_length,
        }[word]  # fmt: skip
    if found is None:
        shown = f"{word}:{name}" if name else word
        raise InvalidRequest(
            f"shard {spec.shard_id}: the command asks for {{{shown}}}, which this shard does not have",
            next_steps=[f"ports leased: {', '.join(sorted(spec.ports)) or 'none'}"] if word == "port" else [],
        )
    return str(found)
