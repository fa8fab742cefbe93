"""The Hub's protocol over a built mirror: used by `serve` and by tests alike."""

from llmgw_kit.clock import Clock
from llmgw_mirror.adapters.file_answer import FileAnswers
from llmgw_mirror.adapters.hub_files import HubFiles
from llmgw_mirror.adapters.hub_http import HubHttp
from llmgw_mirror.adapters.hub_index import HubIndex
from llmgw_mirror.composition import Built
from llmgw_mirror.settings import MirrorSettings


def build_hub(settings: MirrorSettings, built: Built, answers: FileAnswers, clock: Clock) -> HubHttp:
    """Its `close` is to be called when nothing is served any more."""
    index = HubIndex(built.store, clock)
    files = HubFiles(built.mirror, index, answers, big_bytes=settings.hub_big_bytes)
    return HubHttp(index, files, prefix=settings.hub_prefix)
