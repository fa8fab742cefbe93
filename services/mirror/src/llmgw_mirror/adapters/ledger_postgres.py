"""The ledger in Postgres: leases by the database's clock, fenced by a token from a sequence."""

from collections.abc import Mapping, Sequence

from llmgw_kit.postgres import Postgres
from llmgw_kit.text import storable
from llmgw_mirror.adapters.postgres_calls import connection
from llmgw_mirror.core.origins import shown
from llmgw_mirror.core.versions import Moving, VersionView, WeightsState
from llmgw_mirror.ports import Lease, LeaseView, RecordedFile, RecordedVersion

# A lease of our own that is still in force is granted again under a new token: the answer to an earlier
# grant may have been lost, and within one process a key has one task.
ACQUIRE = """
INSERT INTO weights_leases AS held (store_id, key, holder, token, expires_at, state, received_bytes)
VALUES ($1, $2, $3, nextval('weights_lease_token'),
        clock_timestamp() + make_interval(secs => $4), 'fetching', 0)
ON CONFLICT (store_id, key) DO UPDATE
   SET holder = excluded.holder, token = excluded.token, expires_at = excluded.expires_at,
       state = 'fetching', received_bytes = 0, total_bytes = NULL
 WHERE held.expires_at <= clock_timestamp() OR held.holder = excluded.holder
RETURNING token
"""

# By the token alone: an expired lease that nobody took over is still the last one granted.
RENEW = """
UPDATE weights_leases
   SET expires_at = clock_timestamp() + make_interval(secs => $4),
       state = $5, received_bytes = $6, total_bytes = $7
 WHERE store_id = $1 AND key = $2 AND token = $3
RETURNING token
"""

RELEASE = "DELETE FROM weights_leases WHERE store_id = $1 AND key = $2 AND token = $3"

LIVE = """
SELECT key, holder, state, received_bytes, total_bytes FROM weights_leases
 WHERE store_id = $1 AND expires_at > clock_timestamp()
"""

PUT_VERSION = """
INSERT INTO weights_versions
       (store_id, model, version, created_at, repository, commit_id, revision, verified_at)
VALUES ($1, $2, $3, to_timestamp($4), $5, $6, $7, to_timestamp($8::float8))
ON CONFLICT (store_id, model, version) DO UPDATE
   SET created_at = excluded.created_at, repository = excluded.repository,
       commit_id = excluded.commit_id, revision = excluded.revision, verified_at = excluded.verified_at
"""

DROP_FILES = (
    "DELETE FROM weights_files WHERE store_id = $1 AND model = $2 AND version = $3 AND path <> ALL($4)"
)

PUT_FILE = """
INSERT INTO weights_files AS had
       (store_id, model, version, path, url, expected_sha256, expected_bytes,
        state, sha256, size_bytes, error, companion, expected_git_id, proof)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
ON CONFLICT (store_id, model, version, path) DO UPDATE
   SET url = excluded.url, expected_sha256 = excluded.expected_sha256,
       expected_bytes = excluded.expected_bytes,
       state = excluded.state, sha256 = excluded.sha256, size_bytes = excluded.size_bytes,
       companion = excluded.companion, expected_git_id = excluded.expected_git_id, proof = excluded.proof,
       error = excluded.error, changed_at = clock_timestamp()
 WHERE (had.state, had.sha256, had.size_bytes, had.error, had.proof,
        had.url, had.expected_sha256, had.expected_bytes, had.companion, had.expected_git_id)
       IS DISTINCT FROM
       (excluded.state, excluded.sha256, excluded.size_bytes, excluded.error, excluded.proof,
        excluded.url, excluded.expected_sha256, excluded.expected_bytes, excluded.companion,
        excluded.expected_git_id)
"""

RECORDED = """
SELECT model, version, path, state, sha256, size_bytes, error FROM weights_files
 WHERE store_id = $1 ORDER BY model, version, path
"""


class PostgresLedger:
    """See ports.Ledger. Rows hold URLs without their query, where a signature is a credential."""

    def __init__(self, postgres: Postgres, *, store_id: str, holder: str) -> None:
        self._postgres = postgres
        self._store_id = store_id
        self.holder = holder

    async def acquire(self, key: str, *, ttl_s: float) -> Lease | None:
        async with connection(self._postgres) as link:
            token = await link.fetchval(ACQUIRE, self._store_id, key, self.holder, ttl_s)
        return None if token is None else Lease(key, token)

    async def renew(self, lease: Lease, *, ttl_s: float, moving: Moving) -> bool:
        async with connection(self._postgres) as link:
            token = await link.fetchval(
                RENEW, self._store_id, lease.key, lease.token, ttl_s,
                moving.state.value, moving.received_bytes, moving.total_bytes,
            )  # fmt: skip
        return token is not None

    async def release(self, lease: Lease) -> None:
        async with connection(self._postgres) as link:
            await link.execute(RELEASE, self._store_id, lease.key, lease.token)

    async def live(self) -> Mapping[str, LeaseView]:
        async with connection(self._postgres) as link:
            rows = await link.fetch(LIVE, self._store_id)
        return {
            row["key"]: LeaseView(
                row["key"],
                row["holder"],
                Moving(WeightsState(row["state"]), row["received_bytes"], row["total_bytes"]),
            )
            for row in rows
        }

    async def record(self, version: VersionView) -> None:
        name = (self._store_id, version.model, version.version)
        files = [
            (
                *name, f.source.path, shown(f.source.url), f.source.sha256, f.source.size_bytes,
                f.state.value, f.sha256, f.published_bytes,
                None if f.error is None else storable(f.error),
                f.source.companion, f.source.git_id, None if f.proof is None else f.proof.value,
            )
            for f in version.files
        ]  # fmt: skip
        async with connection(self._postgres) as link, link.transaction():
            place = version.repository
            where = (None, None, None) if place is None else (place.id, place.commit, place.revision)
            await link.execute(PUT_VERSION, *name, version.created_at, *where, version.verified_at)
            await link.execute(DROP_FILES, *name, [f.source.path for f in version.files])
            await link.executemany(PUT_FILE, files)

    async def forget(self, model: str, version: str) -> None:
        async with connection(self._postgres) as link:
            await link.execute(
                "DELETE FROM weights_versions WHERE store_id = $1 AND model = $2 AND version = $3",
                self._store_id, model, version,
            )  # fmt: skip

    async def recorded(self) -> Sequence[RecordedVersion]:
        async with connection(self._postgres) as link:
            rows = await link.fetch(RECORDED, self._store_id)
        found: dict[tuple[str, str], list[RecordedFile]] = {}
        for row in rows:
            found.setdefault((row["model"], row["version"]), []).append(
                RecordedFile(
                    row["path"], WeightsState(row["state"]), row["sha256"], row["size_bytes"], row["error"]
                )
            )
        return [RecordedVersion(*name, tuple(files)) for name, files in found.items()]
