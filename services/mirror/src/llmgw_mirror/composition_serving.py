"""What the HTTP listener for nodes serves, over a built mirror: used by `serve` and by tests alike."""

from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry

from llmgw_kit import telemetry
from llmgw_kit.clock import Clock
from llmgw_kit.pieces import PIECE_BYTES
from llmgw_kit.tls_watch import WatchedTls
from llmgw_mirror.adapters.file_answer import FileAnswers
from llmgw_mirror.adapters.http_server import WeightsHttp
from llmgw_mirror.adapters.hub_http import HubHttp
from llmgw_mirror.adapters.metrics import CapCollector, MirrorCollector
from llmgw_mirror.adapters.metrics_keeping import KeepingCollector
from llmgw_mirror.adapters.metrics_tls import TlsCollector
from llmgw_mirror.adapters.piece_hashes import PieceHashes
from llmgw_mirror.adapters.registry_metrics import RegistryCollector
from llmgw_mirror.adapters.swarm_http import SwarmHttp
from llmgw_mirror.composition import Built
from llmgw_mirror.composition_finding import Finders, build_finders
from llmgw_mirror.composition_hub import build_hub
from llmgw_mirror.settings import MirrorSettings


@dataclass(frozen=True)
class Offer:
    """`finders` serve gRPC too."""

    answers: FileAnswers
    finders: Finders
    hashes: PieceHashes
    weights: WeightsHttp
    swarm: SwarmHttp
    hub: HubHttp

    def routes(self) -> list[web.RouteDef]:
        """In this order: what takes everything comes last."""
        return [*self.swarm.routes(), *self.weights.routes(), *self.hub.routes()]

    async def close(self) -> None:
        """To be called when nothing is served any more."""
        await self.hashes.close()
        await self.hub.close()
        await self.finders.close()


def build_offer(
    settings: MirrorSettings, built: Built, clock: Clock, *, piece_bytes: int = PIECE_BYTES
) -> Offer:
    """Begins nothing by itself."""
    mirror = built.mirror
    answers = FileAnswers(mirror.content, built.readers, built.reads, stall_s=settings.send_stall_s)
    finders = build_finders(settings, built, clock)
    hashes = PieceHashes(built.store, clock, piece_bytes=piece_bytes, on_damaged=built.keepers.suspects.doubt)
    return Offer(
        answers, finders, hashes, WeightsHttp(mirror, answers),
        SwarmHttp(mirror, hashes, answers, clock, uploads=settings.piece_uploads),
        build_hub(settings, built, answers, finders.fetching, clock),
    )  # fmt: skip


def metrics_of(built: Built, offer: Offer, tls: WatchedTls | None, clock: Clock) -> CollectorRegistry:
    """All that this mirror's metrics page shows."""
    registry = telemetry.registry()
    served = offer.answers.served
    registry.register(MirrorCollector(built.upkeep, built.flights, built.store, built.tally, served))
    registry.register(RegistryCollector(offer.finders.http))
    keepers = built.keepers
    registry.register(
        KeepingCollector(
            upkeep=built.upkeep, prover=keepers.prover, reads=built.reads, store=built.store, clock=clock
        )
    )
    if tls is not None:
        registry.register(TlsCollector(tls))
    registry.register(CapCollector(built.throttle))
    return registry
