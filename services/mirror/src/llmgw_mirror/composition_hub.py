"""The Hub's protocol over a built mirror: used by `serve` and by tests alike."""

from llmgw_kit.clock import Clock
from llmgw_mirror.adapters.file_answer import FileAnswers
from llmgw_mirror.adapters.hub_files import HubFiles
from llmgw_mirror.adapters.hub_http import HubHttp
from llmgw_mirror.adapters.hub_index import HubIndex
from llmgw_mirror.composition import Built
from llmgw_mirror.fetching_repository import FetchingRepository
from llmgw_mirror.pull_through import PullThrough
from llmgw_mirror.settings import MirrorSettings


def build_hub(
    settings: MirrorSettings, built: Built, answers: FileAnswers, fetching: FetchingRepository, clock: Clock
) -> HubHttp:
    """Its `close` is to be called when nothing is served any more."""
    index = HubIndex(built.store, clock)
    pull = PullThrough(fetching, settings.pull_through, clock)
    files = HubFiles(built.mirror, index, answers, pull, big_bytes=settings.hub_big_bytes)
    return HubHttp(index, files, pull, prefix=settings.hub_prefix)
