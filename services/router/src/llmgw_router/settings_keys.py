"""`keys:` of the router's file: who may ask, where no database says so."""

import os
import stat
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, SecretStr, field_validator, model_validator

from llmgw_kit.errors import StartupError
from llmgw_router.core.keys import DIGEST_BYTES, SHORTEST_KEY, KeyRow, digest_of
from llmgw_router.core.words import counted

DIGEST_PREFIX = "sha256:"
_FORMS = "expected sha256:HEX (llmgw-router key new prints one), or the key itself"


class KeyEntry(BaseModel):
    """One key; a string alone is its digest, or the key itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: In logs and usage records. None: `key-` and the beginning of its digest.
    id: str | None = None
    #: No secret; but a key that was put here by mistake is one, and must not be repeated.
    digest: SecretStr | None = None
    key: SecretStr | None = None
    tenant: str | None = None
    #: None: all.
    models: tuple[str, ...] | None = None
    #: None: every profile; else the first is the key's default.
    profiles: tuple[str, ...] | None = None
    explain: bool = False
    #: With a time zone. None: never.
    expires: datetime | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return {"digest": value} if value.startswith(DIGEST_PREFIX) else {"key": value}

    @field_validator("digest")
    @classmethod
    def _is_a_digest(cls, digest: SecretStr | None) -> SecretStr | None:
        if digest is not None and len(_bytes(digest)) != DIGEST_BYTES:
            raise ValueError(f"this is no digest; expected {DIGEST_PREFIX} and 64 hexadecimal digits")
        return digest

    @field_validator("key")
    @classmethod
    def _is_a_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None:
            text = key.get_secret_value()
            if len(text) < SHORTEST_KEY or not text.isascii() or not text.isprintable() or " " in text:
                raise ValueError(
                    f"this is no key: fewer than {SHORTEST_KEY} characters could be guessed, and blanks and "
                    f"what is not ASCII cannot be sent; {_FORMS}"
                )
        return key

    @field_validator("expires")
    @classmethod
    def _has_a_zone(cls, expires: datetime | None) -> datetime | None:
        if expires is not None and expires.tzinfo is None:
            raise ValueError("a time needs its zone, such as 2027-01-31T00:00:00Z")
        return expires

    @model_validator(mode="after")
    def _one_of_both(self) -> "KeyEntry":
        if (self.digest is None) == (self.key is None):
            raise ValueError(f"a key has either `digest` or `key`; {_FORMS}")
        return self

    def row(self) -> KeyRow:
        """As the workers know it."""
        if self.key is not None:
            digest = digest_of(self.key.get_secret_value().encode())
        else:
            assert self.digest is not None
            digest = _bytes(self.digest)
        return KeyRow(
            digest=digest,
            key_id=self.id or f"key-{digest.hex()[:8]}",
            tenant=self.tenant,
            models=self.models,
            profiles=self.profiles,
            explain=self.explain,
            expires_unix_s=self.expires.timestamp() if self.expires is not None else None,
        )


def _bytes(digest: SecretStr) -> bytes:
    """Of `sha256:HEX`; b"" for what is none."""
    prefix, text = (
        digest.get_secret_value()[: len(DIGEST_PREFIX)],
        digest.get_secret_value()[len(DIGEST_PREFIX) :],
    )
    try:
        return bytes.fromhex(text) if prefix == DIGEST_PREFIX else b""
    except ValueError:
        return b""


def file_warning(keys: tuple[KeyEntry, ...], config: Path | None) -> str | None:
    """What is wrong with how `config` is kept, which has these keys in it; None: nothing."""
    plain = sum(one.key is not None for one in keys)
    if not plain or config is None:
        return None
    try:
        mode = stat.S_IMODE(os.stat(config).st_mode)
    except OSError:
        return None
    if not mode & (stat.S_IRGRP | stat.S_IROTH):
        return None
    return (
        f"{config} holds {counted(plain, 'API key')} in plain text and others may read it (mode {mode:04o}): "
        f"chmod 600 {config}, or put digests there (llmgw-router key new)"
    )


def check_stores(keys: tuple[KeyEntry, ...], *, database: bool, usage_file: bool, required: bool) -> None:
    """One place for keys and one for usage. Raises StartupError."""
    if keys and database:
        raise StartupError(
            "keys and database_url exclude each other: two places would say who may ask",
            next_steps=["keep `keys:` in the file, or create them with llmgwctl key create"],
        )
    if usage_file and database:
        raise StartupError(
            "usage_file and database_url exclude each other: usage would be in one place or the other",
            next_steps=["keep one; the database holds all that the file would"],
        )
    if keys and not required:
        raise StartupError(
            "require_keys is false beside `keys:`, which would then guard nothing",
            next_steps=["drop require_keys, or the keys"],
        )
    if (wrong := _doubled(keys)) is not None:
        raise StartupError(wrong, next_steps=["give each key an id of its own in `keys:`"])


def _doubled(keys: tuple[KeyEntry, ...]) -> str | None:
    """An id that two of them have, or a key that stands there twice."""
    ids: set[str] = set()
    digests: dict[bytes, str] = {}
    for row in (one.row() for one in keys):
        if row.digest in digests:
            return f"keys {digests[row.digest]} and {row.key_id} are the same key"
        if row.key_id in ids:
            return f"two keys have the id {row.key_id}"
        ids.add(row.key_id)
        digests[row.digest] = row.key_id
    return None
