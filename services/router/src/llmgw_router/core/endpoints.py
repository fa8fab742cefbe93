"""Router-only mode: what `--endpoint` and `endpoints:` may say, and the table that follows (M5).

Pure: text in, rows out. A bad endpoint raises InvalidRequest with what was given and what was
expected; the origin (flag or file) is put in front by who reads it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from llmgw_kit.errors import InvalidRequest
from llmgw_router.core.activity import RESERVED_FIELDS
from llmgw_router.core.header_texts import NO_CREDENTIAL, is_credential
from llmgw_router.core.table import Availability, EndpointRow, ModelRow

EXPECTED = "id=URL=model[,model]"
EXAMPLE = "gpu1=http://10.0.0.5:8000=llama-3-8b"
STATIC_POOL = "static"
_DEFAULT_PORT = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class StaticEndpoint:
    """One engine that configuration names."""

    endpoint_id: str
    tls: bool
    host: str
    port: int
    #: Prefix of every path asked there: "" or "/something", without trailing slashes.
    base_path: str
    models: tuple[str, ...]
    pool: str = STATIC_POOL
    weight: int = 1
    #: Smaller ones are used first.
    tier: int = 0
    credential: str | None = None
    #: Of an https endpoint: a file of authorities, and the name in its certificate. None: the usual ones.
    ca: str | None = None
    server_name: str | None = None

    @property
    def shown(self) -> str:
        """For messages, without its credential."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        url = f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.base_path}"
        return f"{url} ({', '.join(self.models)})"

    def __repr__(self) -> str:
        return f"<static {self.endpoint_id} {self.host}:{self.port}{self.base_path} {','.join(self.models)}>"


def split_endpoint(text: str) -> tuple[str, str, tuple[str, ...]]:
    """`id=URL=model[,model]` cut at its first two `=`, blanks trimmed: a model's name may hold `=`.

    Raises InvalidRequest when a part is missing."""
    parts = [part.strip() for part in text.split("=", 2)]
    if len(parts) < 3:
        raise _bad("it has no URL and no model" if len(parts) == 1 else "it has no model")
    endpoint_id, url, models = parts
    return endpoint_id, url, tuple(model.strip() for model in models.split(",")) if models else ()


def static_endpoint(
    endpoint_id: str,
    url: str,
    models: Sequence[str],
    *,
    pool: str = STATIC_POOL,
    weight: int = 1,
    tier: int = 0,
    credential: str | None = None,
    ca: str | None = None,
    server_name: str | None = None,
) -> StaticEndpoint:
    """One checked endpoint. Raises InvalidRequest naming the part that is wrong."""
    endpoint_id = endpoint_id.strip()
    if not endpoint_id:
        raise _bad("the endpoint's id is empty")
    if not endpoint_id.isprintable() or any(c.isspace() for c in endpoint_id):
        raise _bad(f"the endpoint's id {endpoint_id!r} holds blanks or control characters")
    names = tuple(model.strip() for model in models)
    if not names:
        raise _bad(f"endpoint {endpoint_id} names no model")
    for name in names:
        if not name or not name.isprintable():
            raise _bad(f"endpoint {endpoint_id} has an empty or unprintable model name {name!r}")
    if endpoint_id in RESERVED_FIELDS:
        raise _bad(f"the endpoint's id {endpoint_id!r} is a word of the activity map")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _bad(f"endpoint {endpoint_id} names model {twice[0]} twice")
    if weight < 1:
        raise InvalidRequest(f"endpoint {endpoint_id} has weight {weight}; expected 1 or more")
    if credential is not None and not is_credential(credential):
        raise InvalidRequest(
            f"endpoint {endpoint_id} has {NO_CREDENTIAL}",
            next_steps=["look for a line end behind it; without one, leave `credential` out"],
        )
    parts, port = _split_url(endpoint_id, url.strip())
    assert parts.hostname is not None
    if parts.scheme == "http" and (ca is not None or server_name is not None):
        raise InvalidRequest(
            f"endpoint {endpoint_id} has a ca or server_name, but its URL is plain http",
            next_steps=["write https:// in its url, or leave them out"],
        )
    return StaticEndpoint(
        endpoint_id=endpoint_id,
        tls=parts.scheme == "https",
        host=parts.hostname,
        port=port,
        base_path=parts.path.rstrip("/"),
        models=names,
        pool=pool,
        weight=weight,
        tier=tier,
        credential=credential,
        ca=ca,
        server_name=server_name,
    )


def _split_url(endpoint_id: str, url: str) -> tuple[SplitResult, int]:
    def bad(why: str) -> InvalidRequest:
        return InvalidRequest(
            f"endpoint {endpoint_id} has URL {url!r}: {why}; expected http://HOST:PORT",
            next_steps=[f"for example: {EXAMPLE}"],
        )

    if not url.isascii() or not url.isprintable() or " " in url:
        raise bad("it holds blanks or characters outside ASCII")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise bad("its host or port cannot be read; a port is a number from 1 to 65535") from None
    if parts.scheme not in _DEFAULT_PORT:
        raise bad(f"scheme {parts.scheme!r} is not http or https" if parts.scheme else "it has no scheme")
    if not parts.hostname:
        raise bad("it has no host")
    try:
        # What the resolver would do, and fail at, with each request.
        parts.hostname.encode("idna")
    except UnicodeError:
        raise bad("a part of its host between two dots is empty or longer than 63 characters") from None
    if parts.username is not None or parts.password is not None:
        # Never into the message: it may be a password.
        raise InvalidRequest(
            f"endpoint {endpoint_id} has a user or password in its URL",
            next_steps=["give a bearer credential in the file: `credential:` of the endpoint"],
        )
    if parts.query or parts.fragment or url.endswith(("?", "#")):
        raise bad("it has a query or fragment")
    if port == 0:
        raise bad("port 0 is nobody's")
    return parts, _DEFAULT_PORT[parts.scheme] if port is None else port


def check_together(endpoints: Iterable[StaticEndpoint]) -> None:
    """What only the whole list can show. Raises InvalidRequest for an id used twice."""
    seen: dict[str, StaticEndpoint] = {}
    for endpoint in endpoints:
        other = seen.get(endpoint.endpoint_id)
        if other is not None:
            raise InvalidRequest(
                f"endpoint id {endpoint.endpoint_id} is used twice: {other.shown} and {endpoint.shown}",
                next_steps=["each endpoint needs an id of its own, over --endpoint and the file together"],
            )
        seen[endpoint.endpoint_id] = endpoint


def static_table(
    endpoints: Sequence[StaticEndpoint],
) -> tuple[tuple[EndpointRow, ...], tuple[ModelRow, ...]]:
    """Rows for the workers: one an endpoint, whatever number of models it serves."""
    rows = tuple(
        EndpointRow(
            endpoint_id=endpoint.endpoint_id,
            replica_id=endpoint.endpoint_id,
            group_epoch=0,
            model=endpoint.models[0],
            also_models=endpoint.models[1:],
            host=endpoint.host,
            port=endpoint.port,
            base_path=endpoint.base_path,
            tls=endpoint.tls,
            tls_ca=endpoint.ca,
            tls_name=endpoint.server_name,
            pool=endpoint.pool,
            weight=endpoint.weight,
            tier=endpoint.tier,
            credential=endpoint.credential,
        )
        for endpoint in endpoints
    )
    names = sorted({name for endpoint in endpoints for name in endpoint.models})
    return rows, tuple(ModelRow(name=name, availability=Availability.READY) for name in names)


def _bad(what: str) -> InvalidRequest:
    return InvalidRequest(f"{what}; expected {EXPECTED}", next_steps=[f"for example: {EXAMPLE}"])
