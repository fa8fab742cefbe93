"""Making and revoking API keys, for operators. Routers read the rows; no message goes to them."""

import logging
import os

from llmgw_controller.core.keys import (
    NAME_MOST,
    RANDOM_BYTES,
    SCOPE_MOST,
    ApiKey,
    digest_of,
    id_of,
    is_tenant,
    key_of,
    shown,
)
from llmgw_controller.core.plan import PutEvent, Severity
from llmgw_controller.ports import ApiKeys
from llmgw_controller.reign import Reign
from llmgw_kit.errors import Conflict, InvalidRequest, NotFound
from llmgw_kit.text import is_storable

log = logging.getLogger(__name__)

#: Keys named in a refusal.
_NAMED_MOST = 5


def keys_of(reign: Reign) -> ApiKeys:
    """Where keys live. Raises Conflict where that is nowhere."""
    keys = reign.world.store.keys
    if keys is None:
        raise Conflict(
            "this controller has no database: routers could not read a key from its memory",
            code="no_database",
            next_steps=[
                "set dsn for the controller and database_url for the routers",
                "or put `keys:` into a router's file",
            ],
        )
    return keys


async def create_key(
    reign: Reign,
    *,
    name: str,
    tenant: str | None,
    models: tuple[str, ...] | None,
    profiles: tuple[str, ...] | None,
    explain: bool,
    expires_at: float | None,
    dry_run: bool,
) -> tuple[ApiKey, str | None, list[str]]:
    """The row, the key itself (shown this once; None of a dry run), and warnings. Raises InvalidRequest."""
    keys = keys_of(reign)
    now = reign.tenure.now()
    _check(name, tenant, models, profiles, expires_at, now)
    secret = key_of(os.urandom(RANDOM_BYTES))
    digest = digest_of(secret)
    row = ApiKey(
        id_of(digest), digest, shown(secret), name, tenant, models, profiles, explain, now, expires_at
    )
    known = reign.ledger.catalog
    warnings = [
        f"no model {one} in the catalog: the key may use it once there is one"
        for one in models or ()
        if known.resolve(one) is None
    ]
    if dry_run:
        return row, None, warnings
    told = f"{name}{f' of {tenant}' if tenant else ''}, {row.prefix}..."
    async with reign.ledger.writing():
        await keys.put(reign.tenure.term, row, PutEvent(now, "key_created", row.key_id, told, Severity.INFO))
    log.info("API key %s created: %s", row.key_id, told)
    return row, secret, warnings


async def revoke_key(reign: Reign, text: str, *, dry_run: bool) -> ApiKey:
    """The key that `text` names: an id, its beginning, or the beginning that lists show. Raises NotFound, and
    Conflict where more than one could be meant."""
    keys = keys_of(reign)
    if not text or not is_storable(text):
        raise InvalidRequest("no key is named")
    found = await keys.find(text, _NAMED_MOST + 1)
    exact = [one for one in found if one.key_id == text]
    if exact:
        found = exact
    if not found:
        raise NotFound(
            f"no API key {text[:80]}", code="key_not_found", next_steps=["try: llmgwctl key list --all"]
        )
    if len(found) > 1:
        names = ", ".join(one.key_id for one in found[:_NAMED_MOST])
        raise Conflict(
            f"{text[:80]} could be any of {names}", code="ambiguous_key", next_steps=["give a longer id"]
        )
    (row,) = found
    if row.revoked_at is None and not dry_run:
        now = reign.tenure.now()
        async with reign.ledger.writing():
            await keys.revoke(
                reign.tenure.term,
                row.key_id,
                now,
                PutEvent(now, "key_revoked", row.key_id, f"{row.name}, {row.prefix}...", Severity.NOTE),
            )
        log.info("API key %s revoked: %s", row.key_id, row.name)
    return row


def _check(
    name: str,
    tenant: str | None,
    models: tuple[str, ...] | None,
    profiles: tuple[str, ...] | None,
    expires_at: float | None,
    now: float,
) -> None:
    if not name.strip() or len(name) > NAME_MOST or not is_storable(name) or not name.isprintable():
        raise InvalidRequest(f"a key needs a name of 1 to {NAME_MOST} printable characters, to tell it by")
    if tenant is not None and not is_tenant(tenant):
        raise InvalidRequest(
            f"{tenant[:80]!r} is no tenant; expected names of letters, digits, . _ or -, with / between them"
        )
    for what, names in (("model", models), ("profile", profiles)):
        for one in names or ():
            if not one or len(one) > NAME_MOST or not is_storable(one):
                raise InvalidRequest(f"{one[:80]!r} is no name of a {what}")
        if names is not None and len(names) > SCOPE_MOST:
            raise InvalidRequest(f"{len(names)} {what}s in one scope; at most {SCOPE_MOST}")
    if expires_at is not None and expires_at <= now:
        raise InvalidRequest("the key would have expired already", next_steps=["such as --expires 90d"])
