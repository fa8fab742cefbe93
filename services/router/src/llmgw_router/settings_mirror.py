"""The mirror as a router knows it: watched, so that its absence is seen before anybody needs it (M24)."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from llmgw_kit.addresses import HostPort, parse_peer
from llmgw_kit.errors import InvalidRequest, StartupError
from llmgw_kit.settings import ServiceSettings
from llmgw_router.settings_endpoints import told

if TYPE_CHECKING:
    from llmgw_kit.tls_watch import WatchedTls


def _peer(value: str) -> str:
    try:
        return str(parse_peer(value, what="mirror"))
    except InvalidRequest as e:
        raise told(e) from None


class MirrorFields(ServiceSettings):
    """The part of the router's settings that is about the mirror."""

    mirror: Annotated[str, AfterValidator(_peer)] | None = Field(
        None, description="the mirror's gRPC, HOST:PORT; only watched: no request needs it"
    )
    mirror_tls_ca: Path | None = Field(
        None, description="PEM authorities that the mirror's gRPC is verified with; none: plaintext"
    )
    mirror_tls_cert: Path | None = Field(None, description="PEM certificate shown to the mirror")
    mirror_tls_key: Path | None = Field(None, description="its key")
    mirror_tls_name: str | None = Field(
        None, min_length=1, description="what the mirror's certificate calls it, where that is not its host"
    )

    @property
    def mirror_address(self) -> HostPort | None:
        return parse_peer(self.mirror, what="mirror") if self.mirror else None

    def mirror_tls(self) -> "WatchedTls | None":
        """None: plaintext. Reads the files; raises StartupError."""
        from llmgw_kit.tls_watch import client_tls

        return client_tls(
            ca=self.mirror_tls_ca, cert=self.mirror_tls_cert, key=self.mirror_tls_key, what="mirror_tls"
        )


def check_mirror(settings: MirrorFields) -> None:
    """Raises StartupError for files that cannot be used, or that are for nobody."""
    if settings.mirror_tls() is not None and settings.mirror is None:
        raise StartupError("mirror_tls_ca is set, but no mirror", next_steps=["set mirror too, or drop it"])
