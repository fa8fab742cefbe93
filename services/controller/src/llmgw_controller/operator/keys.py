"""The calls on API keys, and on what they have used."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.keys import ApiKey, UsageSum, state_of
from llmgw_controller.key_changes import create_key, keys_of, revoke_key
from llmgw_controller.operator.desk import Context, Desk, moment
from llmgw_kit.errors import InvalidRequest

#: Keys of one answer; it must travel.
KEYS_MOST = 10_000
#: Lines of one answer on usage.
SUMS_MOST = 1000

_BY = {
    pb.USAGE_BY_KEY: "key",
    pb.USAGE_BY_MODEL: "model",
    pb.USAGE_BY_TENANT: "tenant",
    pb.USAGE_BY_ROUTER: "router",
}


class Keys(Desk):
    """Who may use the API, and how much they did."""

    async def CreateKey(self, request: pb.CreateKeyRequest, context: Context) -> pb.CreateKeyResponse:
        """A new key, shown this once."""
        with self._changing() as reign:
            row, secret, warnings = await create_key(
                reign,
                name=request.name,
                tenant=request.tenant if request.HasField("tenant") else None,
                models=tuple(request.models) or None,
                profiles=tuple(request.profiles) or None,
                explain=request.explain,
                expires_at=moment(request, "expires_unix_s"),
                dry_run=request.dry_run,
            )
            key = _row(row, reign.tenure.now())
        return pb.CreateKeyResponse(key=key, secret=secret, warnings=warnings)

    async def ListKeys(self, request: pb.ListKeysRequest, context: Context) -> pb.ListKeysResponse:
        """Newest first."""
        reign, view = await self._view()
        rows = await keys_of(reign).newest(KEYS_MOST, also_gone=request.all)
        now = reign.tenure.now()
        return pb.ListKeysResponse(info=self._info(reign, view), keys=[_row(one, now) for one in rows])

    async def RevokeKey(self, request: pb.RevokeKeyRequest, context: Context) -> pb.RevokeKeyResponse:
        """From its next request on it is refused; what runs finishes. A revoked one stays revoked."""
        with self._changing() as reign:
            before = await revoke_key(reign, request.key_id, dry_run=request.dry_run)
            now = reign.tenure.now()
        if before.revoked_at is not None:
            text = f"{before.key_id} ({before.name}) was revoked already"
        else:
            text = (
                f"{before.key_id} ({before.name}) is refused by every router within 2 s; requests that run "
                "now finish"
            )
        return pb.RevokeKeyResponse(key=_row(before, now), text=text)

    async def GetUsage(self, request: pb.GetUsageRequest, context: Context) -> pb.GetUsageResponse:
        """Sums of what was used since a time, the most first."""
        if request.by not in _BY:
            raise InvalidRequest("usage is summed by key, model, tenant or router")
        since = moment(request, "since_unix_s")
        reign, view = await self._view()
        sums = await keys_of(reign).usage(_BY[request.by], since or 0.0, SUMS_MOST)
        return pb.GetUsageResponse(info=self._info(reign, view), sums=[_sum(one) for one in sums])


def _row(key: ApiKey, now: float) -> pb.ApiKeyRow:
    return pb.ApiKeyRow(
        key_id=key.key_id,
        prefix=key.prefix,
        name=key.name,
        tenant=key.tenant,
        models=key.models or (),
        profiles=key.profiles or (),
        explain=key.explain,
        created_unix_s=key.created_at,
        expires_unix_s=key.expires_at,
        revoked_unix_s=key.revoked_at,
        state=state_of(key, now),
    )


def _sum(one: UsageSum) -> pb.UsageSum:
    return pb.UsageSum(
        name=one.name,
        requests=one.requests,
        interrupted=one.interrupted,
        unknown=one.unknown,
        prompt_tokens=one.prompt_tokens,
        cached_tokens=one.cached_tokens,
        output_tokens=one.output_tokens,
        estimated_tokens=one.estimated_tokens,
    )
