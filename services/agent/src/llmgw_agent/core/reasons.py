"""The words an exit is told with: one table of all that this agent says by itself, and who is to look at it.

A stop that the controller asked for carries the controller's own word. The same table for readers is in the
service's README; the controller's `core/blame.py` says what follows from each.
"""

import re
from collections.abc import Mapping
from enum import Enum

from llmgw_agent.core.shard import Ended


class Concerns(Enum):
    """Who would have to do something for the next start to end better."""

    NOBODY = "nobody"
    #: The machine: its programs, its disk, its agent.
    NODE = "node"
    #: What the engine needs and did not get: files from a mirror.
    SUPPLY = "supply"
    #: The model and its profile.
    PROFILE = "profile"


REASONS: Mapping[str, tuple[Concerns, str]] = {
    "stopped": (Concerns.NOBODY, "a stop was asked for"),
    "replaced": (Concerns.NOBODY, "another spec took the shard's name"),
    "orphan": (Concerns.NOBODY, "it ran and stood on no list of the controller's"),
    "absent": (Concerns.NOBODY, "a stop was asked for, and there was no such shard"),
    "silence": (Concerns.NOBODY, "no controller was heard for as long as its profile allows"),
    "port_taken": (Concerns.NOBODY, "somebody else has a port it was leased"),
    "rebooted": (Concerns.NODE, "the machine was restarted under it"),
    "vanished": (Concerns.NODE, "it ended while no agent watched"),
    "engine_absent": (Concerns.NODE, "the engine's program is not installed on this node"),
    "launch_failed": (Concerns.NODE, "the machine could not start the program"),
    "weights_failed": (Concerns.SUPPLY, "its weights cannot be had, or are not what was published"),
    "refused": (Concerns.PROFILE, "its spec makes no command line, or names what this node has not"),
    "out_of_memory": (Concerns.PROFILE, "it did not fit into the memory of its GPU or of the machine"),
    "never_ready": (Concerns.PROFILE, "it did not answer within its profile's time"),
    "crashed": (Concerns.PROFILE, "it ended by itself"),
}

#: As CUDA, PyTorch, vLLM, SGLang, llama.cpp and the C++ library say it.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|std::bad_alloc|CUDA_ERROR_OUT_OF_MEMORY|HIP_ERROR_OutOfMemory"
    r"|No available memory for the cache blocks|failed to allocate (?:compute |\w+ )?buffer"
    r"|unable to allocate \S+ buffer|Not enough memory\. Please try",
    re.IGNORECASE,
)
_NO_ENGINE = re.compile(r"No module named '?(?:xllamacpp|vllm|sglang)\b")


def recognised(ended: Ended, last_words: str, *, oom_killed: bool) -> str:
    """Why an engine that ended by itself did: "crashed", or a better word.

    `oom_killed`: the kernel killed something for want of memory in the moments before; whom, it does not say,
    so it counts only for an end by SIGKILL, or one that nobody could see."""
    unseen = ended.code is None and ended.signal is None
    if oom_killed and (ended.signal == 9 or unseen):
        return "out_of_memory"
    if ended.code != 0 and _NO_ENGINE.search(last_words):
        return "engine_absent"
    if ended.code != 0 and _OUT_OF_MEMORY.search(last_words):
        return "out_of_memory"
    return "crashed"
