"""The shape of one model as people write it, in YAML or JSON; `catalog_file.py` turns it into core types.

Field by field the same names as `core/catalog.py`; what is optional here has its default here.
docs/catalog.md explains it to those who write it.
"""

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from llmgw_controller.written import bounded, shown
from llmgw_kit.text import is_name, is_storable

MODEL_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._/-]{0,126}[a-z0-9])?")
#: Clients also ask by names others chose ("Qwen/Qwen3-8B"), so aliases know capitals.
ALIAS = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/:-]{0,126}[A-Za-z0-9])?")
WORD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")

#: Linux takes no longer argument or variable than 128 KiB; the agent fills in ports and paths.
STRING_MOST = 127 * 1024
#: Of files, arguments, variables and names of one kind.
ITEMS_MOST = 4096
#: Of a file below its version: what file systems take, less where the version lies.
PATH_MOST, PART_MOST = 1024, 255
#: The largest file of ext4, and more memory than a GPU has.
BYTES_MOST = 16 * 2**40
MONTH_S, YEAR_S = 30 * 86_400, 366 * 86_400

_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(B|KiB|MiB|GiB|TiB|KB|kB|MB|GB|TB)")
_UNITS = {
    "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    "KB": 10**3, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip


def bytes_of(given: Any) -> Any:
    """A count of bytes, or a size with its unit such as "24GiB"."""
    if not isinstance(given, str):
        return given
    match = _SIZE.fullmatch(given.strip())
    if match is None:
        raise ValueError(
            f'{shown(given)} is not a size; expected bytes, or a number with its unit such as "24GiB"'
        )
    return int(float(match[1]) * _UNITS[match[2]])


def _named(pattern: re.Pattern[str], what: str, expected: str) -> AfterValidator:
    def check(given: str) -> str:
        if not pattern.fullmatch(given) or "//" in given or ".." in given:
            raise ValueError(
                f"{shown(given)} is not {what}; expected {expected}, with a letter or digit at both ends"
            )
        return given

    return AfterValidator(check)


def _model_name(given: str) -> str:
    if not MODEL_NAME.fullmatch(given) or "//" in given or ".." in given:
        raise ValueError(
            f"{shown(given)} is not a model name; expected 1 to 128 of a-z 0-9 . _ / - with a letter or "
            "digit at both ends (other spellings go into aliases)"
        )
    return given


def _relative_path(given: str) -> str:
    parts = given.split("/")
    if (
        not given
        or any(part in ("", ".", "..") for part in parts)
        or "\\" in given
        or not given.isprintable()
    ):
        raise ValueError(
            f"{shown(given)} is not a path inside the version; expected printable parts joined by /, no .. "
            "among them"
        )
    if len(given.encode()) > PATH_MOST or any(len(part.encode()) > PART_MOST for part in parts):
        raise ValueError(
            f"{shown(given)} is too long a path; expected at most {PATH_MOST} bytes, and {PART_MOST} "
            "between two /"
        )
    return given


def _url(given: str) -> str:
    if not given.isprintable() or " " in given:
        raise ValueError(
            f"{shown(given)} is not a URL; expected one line without blanks and control characters"
        )
    try:
        split = urlsplit(given)
        _ = split.port  # judged only when it is asked for
    except ValueError as e:
        raise ValueError(f"{shown(given)} is not a URL: {e}") from None
    if split.scheme not in ("http", "https", "file"):
        raise ValueError(f"{shown(given)} is not a weights URL; expected http://, https:// or file://")
    if split.scheme == "file" and (split.netloc or not split.path.startswith("/")):
        raise ValueError(f"{shown(given)} is not a file URL; expected file:///ABSOLUTE/PATH")
    if split.scheme != "file" and not split.hostname:
        raise ValueError(f"{shown(given)} names no host")
    return given


def _sha256(given: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", given):
        raise ValueError(f"{shown(given)} is not a SHA-256; expected 64 hexadecimal digits")
    return given.lower()


def _text(given: str) -> str:
    if not is_storable(given):
        what = "a NUL" if "\0" in given else "half a character (a lone surrogate)"
        raise ValueError(f"{shown(given)} holds {what}; no program can be given one, and no store keeps it")
    if (size := len(given.encode())) > STRING_MOST:
        raise ValueError(f"{shown(given)} is {size} bytes long; expected at most {STRING_MOST}")
    return given


def _gpu_class(given: str) -> str:
    if not is_name(given, most=64):
        raise ValueError(
            f"{shown(given)} is no GPU class; expected 1 to 64 printable characters with no blank at "
            "either end"
        )
    return given


def _node_id(given: str) -> str:
    if not is_name(given, most=300):
        raise ValueError(f"{shown(given)} is no node id; expected 1 to 300 printable characters on one line")
    return given


def _ready_path(given: str) -> str:
    if not given.startswith("/") or not given.isprintable() or " " in given:
        raise ValueError(f"{shown(given)} is no path of a URL; expected / and then no blanks")
    return given


#: No agent starts a program with anything else: refused here, not at the hundredth start.
Text = Annotated[str, AfterValidator(_text)]
Word = Annotated[str, _named(WORD, "a name", "1 to 64 of a-z A-Z 0-9 . _ -")]
Bytes = Annotated[int, bounded(1, BYTES_MOST, "16 TiB"), BeforeValidator(bytes_of)]
#: Zero: at once.
Seconds = Annotated[float, bounded(0, MONTH_S, "30 days", whole=False)]
#: Zero would be no time at all.
Lasting = Annotated[float, bounded(0, YEAR_S, "366 days", whole=False, above=True)]
Count = Annotated[int, bounded(1, 4096)]
Replicas = Annotated[int, bounded(1, 10_000)]


class Written(BaseModel):
    """Strict: "3" is no number, and a key nobody knows is an error, not a wish."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class FileWritten(Written):
    path: Annotated[Text, AfterValidator(_relative_path)]
    url: Annotated[Text, AfterValidator(_url)]
    sha256: Annotated[str, AfterValidator(_sha256)] | None = None
    size_bytes: Bytes | None = None


class WeightsWritten(Written):
    version: Word
    files: Annotated[list[FileWritten], Field(min_length=1, max_length=ITEMS_MOST)]
    entry_file: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "WeightsWritten":
        paths = [file.path for file in self.files]
        if twice := sorted({path for path in paths if paths.count(path) > 1}):
            raise ValueError(f"files name {twice[0]!r} twice")
        if self.entry_file is not None and self.entry_file not in paths:
            raise ValueError(
                f"entry_file {shown(self.entry_file)} is none of its files: {', '.join(sorted(paths))}"
            )
        return self


class ProfileWritten(Written):
    name: Word = "default"
    engine: Literal["llamacpp", "vllm", "sglang", "command"]
    gpu_class: Annotated[Text, AfterValidator(_gpu_class)]
    nodes: Count = 1
    gpus_per_node: Count = 1
    #: None: gpus_per_node, if none of the three is given; else 1.
    tensor_parallel: Count | None = None
    #: None: nodes, if none of the three is given; else 1.
    pipeline_parallel: Count | None = None
    data_parallel: Count | None = None
    memory_bytes: Bytes | None = None
    context_length: Annotated[int, bounded(1, 2**31 - 1)] | None = None
    args: Annotated[list[Text], Field(max_length=ITEMS_MOST)] = []
    env: Annotated[dict[str, Text], Field(max_length=ITEMS_MOST)] = {}
    command: Annotated[list[Text], Field(max_length=ITEMS_MOST)] = []
    extra_ports: Annotated[list[Word], Field(max_length=64)] = []
    ready_path: Annotated[Text, AfterValidator(_ready_path)] | None = None
    ready_timeout_s: Lasting = 600.0
    drain_timeout_s: Seconds = 300.0
    stop_grace_s: Seconds = 20.0
    stop_after_silence_s: Lasting | None = None
    min_uptime_s: Seconds = 60.0
    pool: Word | None = None
    node_ids: Annotated[list[Annotated[Text, AfterValidator(_node_id)]], Field(max_length=ITEMS_MOST)] = []
    whole_nodes: bool = False
    stall_timeout_s: Lasting | None = None
    concurrency: Annotated[int, bounded(1, 100_000)] | None = None

    @property
    def parallelism(self) -> tuple[int, int, int]:
        """Tensor, pipeline, data; defaults filled in."""
        given = (self.tensor_parallel, self.pipeline_parallel, self.data_parallel)
        if given == (None, None, None):
            return self.gpus_per_node, self.nodes, 1
        return given[0] or 1, given[1] or 1, given[2] or 1

    @model_validator(mode="after")
    def _consistent(self) -> "ProfileWritten":
        tensor, pipeline, data = self.parallelism
        if tensor * pipeline * data != self.nodes * self.gpus_per_node:
            raise ValueError(
                f"tensor_parallel {tensor} x pipeline_parallel {pipeline} x data_parallel {data} = "
                f"{tensor * pipeline * data}, but nodes {self.nodes} x gpus_per_node {self.gpus_per_node} = "
                f"{self.nodes * self.gpus_per_node} GPUs; the two must be equal"
            )
        if self.engine == "command" and not self.command:
            raise ValueError('engine "command" needs command: the program and its arguments')
        if self.engine != "command" and self.command:
            raise ValueError(
                f'command belongs to engine "command"; {self.engine} takes further flags in args'
            )
        if self.engine == "llamacpp" and self.nodes > 1:
            raise ValueError(f"engine llamacpp runs on one node, got nodes: {self.nodes}")
        if "http" in self.extra_ports or len(set(self.extra_ports)) < len(self.extra_ports):
            raise ValueError('extra_ports are distinct names beside "http", which every shard has')
        for name in self.env:
            if not ENVIRONMENT_NAME.fullmatch(name):
                raise ValueError(f"env: {shown(name)} is no name of an environment variable")
        return self


class ModelWritten(Written):
    name: Annotated[str, AfterValidator(_model_name)]
    aliases: Annotated[
        list[Annotated[str, _named(ALIAS, "an alias", "1 to 128 of a-z A-Z 0-9 . _ / : -")]],
        Field(max_length=256),
    ] = []
    weights: WeightsWritten | None = None
    profiles: Annotated[list[ProfileWritten], Field(min_length=1)]
    replicas: Annotated[int, bounded(0, 10_000)] = 0
    activate_on_demand: bool = True
    hold_timeout_s: Seconds = 120.0
    max_held: Annotated[int, bounded(0, 1_000_000)] = 100
    idle_after_s: Lasting | None = None
    min_residency_s: Seconds = 60.0
    pinned: bool = False
    priority: Annotated[int, bounded(-1_000_000, 1_000_000)] = 0
    max_replicas: Replicas | None = None
    spread: Literal["pack", "spread"] = "pack"
    rollout: Literal["surge", "stop_first"] = "surge"
    max_unavailable: Replicas = 1
    max_held_per_tenant: Annotated[int, bounded(0, 1_000_000)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "ModelWritten":
        names = [profile.name for profile in self.profiles]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two profiles are named {twice[0]!r}; give each its own name")
        if len({self.name, *self.aliases}) < 1 + len(self.aliases):
            raise ValueError("aliases repeat each other or the name")
        for profile in self.profiles:
            if profile.engine == "command":
                continue
            if self.weights is None:
                raise ValueError(f"engine {profile.engine} needs weights (profile {profile.name})")
            if profile.engine == "llamacpp" and self.weights.entry_file is None:
                raise ValueError(
                    f"engine llamacpp opens one file: weights.entry_file must name it ({profile.name})"
                )
        if self.replicas == 0 and not self.activate_on_demand:
            raise ValueError("replicas 0 with activate_on_demand false: nothing would ever start it")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(f"max_replicas {self.max_replicas} is below replicas {self.replicas}")
        return self
