"""Settings: flag over environment over YAML file over default, each an explained field.

A service declares one frozen subclass of `ServiceSettings` and calls `load` once, in `main`.
"""

import os
import re
import textwrap
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

import yaml
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from llmgw_kit.errors import StartupError
from llmgw_kit.names import did_you_mean


class ServiceSettings(BaseSettings):
    """Base of each service's settings class. Subclasses set `env_prefix` in their model_config
    (`LLMGW_ROUTER_` ...) and give every field a description with its unit and reason."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_nested_delimiter="__")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # The file is merged by `load` below the environment; no .env file is ever read by surprise.
        return init_settings, env_settings, _SecretFileSource(settings_cls), _FileSource(settings_cls)

    #: Values of the configuration file, for the duration of one `load`.
    _file_values: ClassVar[Mapping[str, Any]] = {}


class _FileSource(PydanticBaseSettingsSource):
    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        return dict(ServiceSettings._file_values)


class _SecretFileSource(PydanticBaseSettingsSource):
    """`LLMGW_<SERVICE>_<FIELD>_FILE` names a file that holds the value: how containers hand in secrets.

    Below the plain variable; the value never shows in `docker inspect` or a process listing."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        prefix = str(self.settings_cls.model_config.get("env_prefix", ""))
        variable = f"{prefix}{field_name.upper()}_FILE"
        path = os.environ.get(variable)
        if not path or f"{field_name}_file" in self.settings_cls.model_fields:
            return None, field_name, False
        try:
            return Path(path).read_text(encoding="utf-8").strip(), field_name, False
        except OSError as e:
            raise StartupError(f"environment {variable}={path} cannot be read: {e.strerror}") from None
        except UnicodeDecodeError:
            raise StartupError(f"environment {variable}={path}: the file is not UTF-8") from None

    def __call__(self) -> dict[str, Any]:
        found = (
            (name, self.get_field_value(field, name)[0])
            for name, field in self.settings_cls.model_fields.items()
        )
        return {name: value for name, value in found if value is not None}


S = TypeVar("S", bound=ServiceSettings)

#: What PyYAML's constructors raise for a value that does not fit its type, such as the 30th of February.
_PARSER_TRIPS = (ValueError, LookupError, AttributeError, TypeError, ArithmeticError)


class _StandsTwice(Exception):
    """A key of one mapping."""


class _Loader(yaml.SafeLoader):
    """YAML forbids a key that stands twice; PyYAML takes the last one in silence."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._looked_at: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # Once, before `<<` is put in its place: what that brings may be written over.
        if id(node) not in self._looked_at:
            self._looked_at.add(id(node))
            lines: dict[tuple[str, str], int] = {}
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    line, what = key.start_mark.line + 1, (key.tag, key.value)
                    if what in lines:
                        where = f"lines {lines[what]} and {line}"
                        raise _StandsTwice(f"key {key.value!r} stands twice in one mapping, in {where}")
                    lines[what] = line
        super().flatten_mapping(node)


def load(
    cls: type[S], *, config: Path | None, flags: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> S:
    """Read settings once. `flags` holds what the command line gave; None means "not given".

    Raises StartupError naming the field, its origin and, for an unknown key, the nearest known one."""
    prefix = cls.model_config.get("env_prefix", "")
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    values = read_yaml(config, known=cls.model_fields) if config else {}
    check_environment(cls, prefix, os.environ if environ is None else environ)
    ServiceSettings._file_values = values
    try:
        return cls(**given)
    except ValidationError as e:
        raise StartupError(_explain(e, cls, given, values, config)) from None
    except SettingsError as e:
        # Lists and mappings come out of the environment as JSON; the value stays out of the message.
        named = re.search(r'field "(\w+)"', str(e))
        variable = f"{prefix}{named.group(1).upper()}" if named else f"{prefix}*"
        raise StartupError(
            f"environment {variable} is not JSON, which a list or mapping must be",
            next_steps=["or write it into the configuration file"],
        ) from None
    finally:
        ServiceSettings._file_values = {}


def read_yaml(path: Path, *, known: Mapping[str, object]) -> dict[str, Any]:
    """A mapping from a YAML file, its top-level keys checked against `known`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise StartupError(f"configuration file {path} cannot be read: {e.strerror}") from None
    except UnicodeDecodeError as e:
        where = f"byte {e.object[e.start]:#04x} at {e.start}"
        raise StartupError(
            f"configuration file {path} is not UTF-8: {where}", next_steps=["save it as UTF-8"]
        ) from None
    try:
        values = yaml.load(text, Loader=_Loader)
    except _StandsTwice as e:
        raise StartupError(
            f"configuration file {path}: {e}", next_steps=["keep one; only the last would count"]
        ) from None
    except RecursionError:
        raise StartupError(f"configuration file {path} is nested too deeply to be read") from None
    except (yaml.YAMLError, *_PARSER_TRIPS) as e:
        raise StartupError(f"configuration file {path} is not YAML: {e or type(e).__name__}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise StartupError(
            f"configuration file {path} holds a {type(values).__name__}; expected `key: value` lines"
        )
    for key in values:
        if key not in known:
            raise StartupError(
                f"configuration file {path}: unknown key {key!r}{did_you_mean(str(key), known)}",
                next_steps=["serve --print-config shows every key"],
            )
    return values


def check_environment(cls: type[ServiceSettings], prefix: str, environ: Mapping[str, str]) -> None:
    """Refuse what Kubernetes injects for a Service of the same name, naming its likely origin.

    A Service `llmgw-router` makes the kubelet set LLMGW_ROUTER_PORT=tcp://... in every pod."""
    for name, value in environ.items():
        if not name.startswith(prefix) or not prefix:
            continue
        field = name[len(prefix) :].lower().split("__")[0]
        if field in cls.model_fields and value.startswith("tcp://"):
            raise StartupError(
                f"environment {name}={value} looks like a Kubernetes service link, not a setting",
                next_steps=["set enableServiceLinks: false on the pod, or rename the Service"],
            )


def effective(settings: ServiceSettings) -> str:
    """The settings as YAML with what each is for, secrets masked: what `serve --print-config` prints."""

    def plain(value: Any) -> Any:
        if isinstance(value, SecretStr):
            return "********"
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        if isinstance(value, (str, int, float, bool)) or value is None:
            return value
        return str(value)

    lines: list[str] = []
    for name, value in settings.model_dump().items():
        described = type(settings).model_fields[name].description
        lines += [f"# {line}" for line in textwrap.wrap(described or "", 100)]
        lines.append(yaml.safe_dump({name: plain(value)}, sort_keys=False, allow_unicode=True).rstrip("\n"))
    return "\n".join(lines) + "\n"


def _is_secret(cls: type[BaseModel], loc: tuple[int | str, ...]) -> bool:
    """Whether what stands at `loc` is a secret, at whatever depth of tables and lists."""
    models, secret = {cls}, False
    for part in loc:
        annotations = [model.model_fields[part].annotation for model in models if part in model.model_fields]
        if annotations:
            secret = any("Secret" in str(one) for one in annotations)
            models = {found for one in annotations for found in _models_in(one)}
    return secret


def _models_in(annotation: Any) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {found for part in get_args(annotation) for found in _models_in(part)}


#: Instead of what the library says, which names its own types.
_SHAPES = {
    "dict_type": "expected a table of `key: value` lines",
    "model_type": "expected a table of `key: value` lines",
    "tuple_type": "expected a list",
    "list_type": "expected a list",
}


def _shown(value: Any) -> str:
    """As the file has it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value) if isinstance(value, date) else repr(value)


def _explain(
    e: ValidationError,
    cls: type[ServiceSettings],
    flags: Mapping[str, Any],
    file: Mapping[str, Any],
    config: Path | None,
) -> str:
    prefix = cls.model_config.get("env_prefix", "")
    lines = []
    for problem in e.errors():
        top = str(problem["loc"][0]) if problem["loc"] else ""
        path = ".".join(str(part) for part in problem["loc"])
        if top in flags:
            origin = f"--{top.replace('_', '-')}"
        elif f"{prefix}{top.upper()}" in os.environ:
            origin = f"environment {prefix}{top.upper()}"
        elif top in file:
            origin = f"{config}: {path}"
        else:
            origin = path or "settings"
        message = _SHAPES.get(problem["type"]) or problem["msg"].removeprefix("Value error, ")
        value = problem.get("input")
        # The raw input of a secret field is a plain string: it must not reach a terminal or a log.
        secret = _is_secret(cls, problem["loc"])
        given = (
            ""
            if secret or isinstance(value, (dict, list, SecretStr)) or problem["type"] == "missing"
            else f" (given {_shown(value)})"
        )
        lines.append(f"{origin}: {message}{given}")
    return "\n".join(lines)
