"""What looks in the registry, over a built mirror: used by `serve` and by tests alike."""

from __future__ import annotations  # composition.py, which has the rest, asks here for its tokens

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmgw_kit.clock import Clock
from llmgw_mirror.adapters.registry_client import RegistryClient
from llmgw_mirror.adapters.registry_http import RegistryHttp
from llmgw_mirror.core.origins import origin_of
from llmgw_mirror.fetching_repository import FetchingRepository
from llmgw_mirror.finding import Finding
from llmgw_mirror.settings import MirrorSettings

if TYPE_CHECKING:
    from llmgw_mirror.composition import Built


@dataclass(frozen=True)
class Finders:
    """`http` None: no registry is configured."""

    finding: Finding
    fetching: FetchingRepository
    http: RegistryHttp | None

    async def close(self) -> None:
        """End the connections to the registry."""
        if self.http is not None:
            await self.http.close()


def tokens_of(settings: MirrorSettings) -> Mapping[str, str]:
    """By origin, for fetches: files of the registry want its token, unless its origin was given one."""
    given = {origin: token.get_secret_value() for origin, token in settings.upstream_tokens.items()}
    if settings.registry_url is None or settings.registry_token is None:
        return given
    origins = {str(origin_of(origin)) for origin in given}
    own = str(origin_of(settings.registry_url))
    return given if own in origins else {**given, own: settings.registry_token.get_secret_value()}


def build_finders(settings: MirrorSettings, built: Built, clock: Clock) -> Finders:
    """To be closed when nothing is asked any more."""
    http = None
    if settings.registry_url is not None:
        token, proxy = settings.registry_token, settings.upstream_proxy
        http = RegistryHttp(
            base_url=settings.registry_url,
            token=None if token is None else token.get_secret_value(),
            clock=clock,
            timeout_s=settings.registry_timeout_s,
            proxy=None if proxy is None else proxy.get_secret_value(),
        )
    mirror, store, threads, reserve_bytes = (
        built.mirror,
        built.store,
        built.readers,
        settings.disk_reserve_bytes,
    )
    finding = Finding(
        registry=None if http is None else RegistryClient(http), mirror=mirror, store=store, threads=threads,
        reserve_bytes=reserve_bytes,
    )  # fmt: skip
    fetching = FetchingRepository(
        finding=finding, mirror=mirror, store=store, threads=threads, clock=clock, reserve_bytes=reserve_bytes
    )
    return Finders(finding, fetching, http)
