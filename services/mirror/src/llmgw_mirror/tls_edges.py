"""TLS at the mirror's two edges: the files of its listeners, and what is said of a listener without."""

from llmgw_kit.addresses import HostPort
from llmgw_kit.errors import InvalidRequest, StartupError
from llmgw_kit.tls import TlsFiles
from llmgw_kit.tls_watch import Side, WatchedTls
from llmgw_mirror.settings import MirrorSettings


def open_tls(settings: MirrorSettings) -> WatchedTls | None:
    """None: none is configured. Raises StartupError when the files cannot be used."""
    if not settings.tls_files:
        return None
    try:
        return WatchedTls(settings.tls_files, Side.SERVER, what="tls_cert, tls_key, tls_client_ca")
    except InvalidRequest as e:
        raise StartupError(e.text, next_steps=e.next_steps) from None


def exposed(name: str, address: HostPort, files: TlsFiles) -> str | None:
    """What whoever reaches this listener can do unasked; None: nobody unknown can."""
    if address.loopback or files.ca is not None:
        return None
    who = f"whoever reaches {name} on {address} may use it"
    if files:
        return f"NOT ASKED WHO THEY ARE: {who}; set tls_client_ca to let in known clients only"
    return (
        f"PLAINTEXT: {who}, and nothing is encrypted; for a trusted network only. "
        "Set tls_cert, tls_key and tls_client_ca"
    )
