"""The commands that only look: each asks for one view and prints it."""

from typing import Any

import click

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import as_json_explained, as_json_nodes, as_json_replicas, as_json_status
from llmgw_controller.cli.page import Page
from llmgw_controller.cli.session import Session
from llmgw_controller.cli.times import Moment
from llmgw_controller.cli.views import fabrics as fabrics_view
from llmgw_controller.cli.views import nodes as nodes_view
from llmgw_controller.cli.views import replicas as replicas_view
from llmgw_controller.cli.views import status as status_view
from llmgw_controller.cli.views import why as why_view

#: It asks the pass itself, again and again: seconds on a large fleet where much waits and little helps.
WHY_TIMEOUT_S = 30


@click.command()
@click.option("--at", type=Moment(), help="As it was: -2h, 14:05, or 2026-11-30T14:05 (UTC).")
@click.pass_obj
def status(session: Session, at: float | None) -> None:
    """Trouble, capacity, models, what nobody asks for."""

    def render(page: Page, answer: pb.GetStatusResponse) -> int:
        status_view.render(page, answer)
        return status_view.exit_code(answer)

    session.show(
        lambda stub: stub.GetStatus(pb.GetStatusRequest(at_unix_s=at), timeout=10),
        render,
        lambda answer: as_json_status.status(answer, exit_code=status_view.exit_code(answer)),
    )


@click.command()
@click.pass_obj
def fabrics(session: Session) -> None:
    """Fabrics: nodes free, and the largest replica that fits.

    Now, and if the idle ones left."""

    async def both(stub: Any) -> tuple[pb.GetStatusResponse, pb.ListNodesResponse]:
        return (
            await stub.GetStatus(pb.GetStatusRequest(), timeout=10),
            await stub.ListNodes(pb.ListNodesRequest(), timeout=10),
        )

    def render(page: Page, answer: tuple[pb.GetStatusResponse, pb.ListNodesResponse]) -> int:
        fabrics_view.render(page, *answer)
        return 0

    session.show(both, render, lambda answer: as_json_status.fabrics(*answer))


@click.command()
@click.option("--all", "every", is_flag=True, help="Every node, not only the first page.")
@click.pass_obj
def nodes(session: Session, *, every: bool) -> None:
    """Nodes with their devices, trouble first."""

    def render(page: Page, answer: pb.ListNodesResponse) -> int:
        nodes_view.render_nodes(page, answer, every=every)
        return 0

    session.show(lambda stub: stub.ListNodes(pb.ListNodesRequest(), timeout=10), render, as_json_nodes.nodes)


@click.command()
@click.option("--node", help="Only this node.")
@click.pass_obj
def gpus(session: Session, node: str | None) -> None:
    """Each GPU: its state, what holds it, its memory."""

    def render(page: Page, answer: pb.ListDevicesResponse) -> int:
        nodes_view.render_gpus(page, answer)
        return 0

    session.show(
        lambda s: s.ListDevices(pb.ListDevicesRequest(node_id=node), timeout=10), render, as_json_nodes.gpus
    )


@click.command()
@click.option("--model", help="Only this model's.")
@click.option("--all", "every", is_flag=True, help="Every replica, not only the first page.")
@click.pass_obj
def replicas(session: Session, model: str | None, *, every: bool) -> None:
    """Replicas: where they are, how long nobody asked."""

    def render(page: Page, answer: pb.ListReplicasResponse) -> int:
        replicas_view.render_replicas(page, answer, every=every)
        return 0

    request = pb.ListReplicasRequest(model=model)
    session.show(lambda stub: stub.ListReplicas(request, timeout=10), render, as_json_replicas.replicas)


@click.command()
@click.option("--model", help="Only this model's.")
@click.pass_obj
def shards(session: Session, model: str | None) -> None:
    """Engine processes as their agents report them."""

    def render(page: Page, answer: pb.ListReplicasResponse) -> int:
        replicas_view.render_shards(page, answer)
        return 0

    request = pb.ListReplicasRequest(model=model)
    session.show(lambda stub: stub.ListReplicas(request, timeout=10), render, as_json_replicas.replicas)


@click.command()
@click.pass_obj
def models(session: Session) -> None:
    """The catalog, cold models included."""

    def render(page: Page, answer: pb.ListModelsResponse) -> int:
        replicas_view.render_models(page, answer)
        return 0

    session.show(
        lambda stub: stub.ListModels(pb.ListModelsRequest(), timeout=10), render, as_json_replicas.models
    )


@click.command()
@click.argument("model")
@click.pass_obj
def why(session: Session, model: str) -> None:
    """Would one more of MODEL fit? What is in the way?"""

    def render(page: Page, answer: pb.WhyResponse) -> int:
        why_view.render(page, answer)
        return why_view.exit_code(answer)

    session.show(
        lambda stub: stub.Why(pb.WhyRequest(model=model), timeout=WHY_TIMEOUT_S),
        render,
        lambda answer: as_json_explained.why(answer, exit_code=why_view.exit_code(answer)),
    )


ALL = (status, fabrics, nodes, gpus, replicas, shards, models, why)
