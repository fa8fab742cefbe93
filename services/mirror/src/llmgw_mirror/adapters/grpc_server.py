"""MirrorService over gRPC: messages in and out, nothing decided here. One class a group of calls."""

from llmgw.v1 import mirror_pb2, mirror_pb2_grpc
from llmgw_mirror.adapters.call_checks import checking
from llmgw_mirror.adapters.calls_bundles import BundleCalls
from llmgw_mirror.adapters.calls_fetching import FetchingCalls
from llmgw_mirror.adapters.calls_keeping import KeepingCalls
from llmgw_mirror.adapters.calls_registry import RegistryCalls
from llmgw_mirror.adapters.calls_suggest import SuggestCalls
from llmgw_mirror.composition import Built
from llmgw_mirror.composition_finding import Finders

_SERVICE = mirror_pb2.DESCRIPTOR.services_by_name["MirrorService"]
SERVICE = _SERVICE.full_name


@checking(_SERVICE)
class MirrorServicer(
    FetchingCalls, KeepingCalls, BundleCalls, RegistryCalls, SuggestCalls,
    mirror_pb2_grpc.MirrorServiceServicer,
):  # fmt: skip
    """Errors leave as LlmgwError; llmgw_kit.rpc maps them."""

    def __init__(self, built: Built, finders: Finders) -> None:
        FetchingCalls.__init__(self, built.mirror, built.downloads, built.throttle)
        KeepingCalls.__init__(self, built.keepers.keeping)
        RegistryCalls.__init__(self, finders.finding, finders.fetching)
        SuggestCalls.__init__(self, built.mirror, built.readers)
        BundleCalls.__init__(self, built.bundling)
