"""API keys as the data plane knows them: digests, what each may use, and until when."""

import msgspec


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One API key as workers know it: never the key, only its digest."""

    #: SHA-256 of the key as it stands behind `Bearer `.
    digest: bytes
    key_id: str
    #: Path in the tree of tenants, "/" between levels; None: belongs to nobody in particular.
    tenant: str | None = None
    #: Names of models it may use; None: all.
    models: tuple[str, ...] | None = None
    #: Routing profiles it may ask for; the first is its own default. None: every profile, the usual default.
    profiles: tuple[str, ...] | None = None
    #: May see `x-llmgw-decision`.
    explain: bool = False
    expires_unix_s: float | None = None
