"""The calls on the membership of routers."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.members import Member, members
from llmgw_controller.operator.desk import Context, Desk
from llmgw_controller.router_changes import forget_router


class Routers(Desk):
    """Who counts for idleness, and who no longer does."""

    async def ListRouters(self, request: pb.ListRoutersRequest, context: Context) -> pb.ListRoutersResponse:
        """Every member."""
        reign, view = await self._view()
        stored = reign.ledger.stored
        rows = members(reign.snapshot(stored), reign.board.watching, reign.applied(stored))
        return pb.ListRoutersResponse(info=self._info(reign, view), routers=[_row(one) for one in rows])

    async def ForgetRouter(
        self, request: pb.ForgetRouterRequest, context: Context
    ) -> pb.ForgetRouterResponse:
        """Take one that is dead out of the membership."""
        with self._changing() as reign:
            text = await forget_router(reign, request.router_id, dry_run=request.dry_run)
        return pb.ForgetRouterResponse(router_id=request.router_id, text=text)


def _row(member: Member) -> pb.RouterRow:
    return pb.RouterRow(
        router_id=member.row.router_id,
        incarnation=member.row.incarnation,
        seen_unix_s=member.row.seen_at,
        report_age_s=member.report_age_s,
        watching=member.watching,
        applied_version=member.applied_version,
        crashed_unix_s=member.row.crashed_at,
        in_flight=member.in_flight,
        held=member.held,
    )
