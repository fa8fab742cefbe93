"""MirrorService over gRPC: messages in and out, nothing decided here. One class a group of calls."""

from llmgw.v1 import mirror_pb2, mirror_pb2_grpc
from llmgw_mirror.adapters.calls_bundles import BundleCalls, Bundling
from llmgw_mirror.adapters.calls_fetching import FetchingCalls
from llmgw_mirror.adapters.calls_keeping import KeepingCalls
from llmgw_mirror.adapters.calls_registry import RegistryCalls
from llmgw_mirror.adapters.calls_suggest import SuggestCalls
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.composition_finding import Finders
from llmgw_mirror.keeping import Keeping
from llmgw_mirror.service import Mirror

SERVICE = mirror_pb2.DESCRIPTOR.services_by_name["MirrorService"].full_name


class MirrorServicer(
    FetchingCalls, KeepingCalls, BundleCalls, RegistryCalls, SuggestCalls,
    mirror_pb2_grpc.MirrorServiceServicer,
):  # fmt: skip
    """Errors leave as LlmgwError; llmgw_kit.rpc maps them."""

    def __init__(
        self, mirror: Mirror, keeping: Keeping, finders: Finders, bundling: Bundling | None,
        readers: DiskThreads,
    ) -> None:  # fmt: skip
        FetchingCalls.__init__(self, mirror)
        KeepingCalls.__init__(self, keeping)
        RegistryCalls.__init__(self, finders.finding, finders.fetching)
        SuggestCalls.__init__(self, mirror, readers)
        BundleCalls.__init__(self, bundling)
