"""API keys as an operator makes them. What the key is, is known to its holder alone: kept is its digest.

The form is the routers' too (`llmgw-router key new`): `sk-llmgw-` and 256 bits of chance; SHA-256 of all of
it is its digest.
"""

import base64
import hashlib
import re
from dataclasses import dataclass

PREFIX = "sk-llmgw-"
RANDOM_BYTES = 32
#: In lists a key is named by its beginning: the prefix and six of its 43 characters.
SHOWN_CHARACTERS = len(PREFIX) + 6

NAME_MOST = 128
#: Names of one scope.
SCOPE_MOST = 256
_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}(/[A-Za-z0-9._-]{1,64}){0,7}", re.ASCII)


@dataclass(frozen=True)
class ApiKey:
    """One row. None in a scope: everything; in a time: never."""

    key_id: str
    digest: bytes
    prefix: str
    name: str
    tenant: str | None
    models: tuple[str, ...] | None
    #: The first is the key's own default.
    profiles: tuple[str, ...] | None
    explain: bool
    created_at: float
    expires_at: float | None
    revoked_at: float | None = None


def key_of(random: bytes) -> str:
    """A key of RANDOM_BYTES from the operating system."""
    assert len(random) == RANDOM_BYTES
    return PREFIX + base64.urlsafe_b64encode(random).rstrip(b"=").decode()


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def shown(key: str) -> str:
    """What lists show in its place."""
    return key[:SHOWN_CHARACTERS]


def id_of(digest: bytes) -> str:
    """Stands in logs, events and usage; says nothing of the key."""
    return f"key-{digest.hex()[:12]}"


def is_tenant(path: str) -> bool:
    """Whether it can be a path in the tree of tenants: up to eight names, "/" between them."""
    return _TENANT.fullmatch(path) is not None


def state_of(key: ApiKey, now: float) -> str:
    """`revoked`, `expired` or `good`."""
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= now else "good"


@dataclass(frozen=True)
class UsageSum:
    """What one of them has used. Tokens are of those requests of which they are known."""

    #: Of what was asked by: a key's id, a model, a tenant, a router; None: requests without one.
    name: str | None
    requests: int
    #: Of these, such as are interrupted, and such of which nobody knows what they used.
    interrupted: int
    unknown: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    #: Of the tokens, those that were counted or guessed and not told by an engine.
    estimated_tokens: int
