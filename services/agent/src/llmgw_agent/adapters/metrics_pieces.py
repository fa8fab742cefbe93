"""What pieces cost whom: bytes taken from mirrors and other nodes, and given to nodes."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from llmgw_agent.adapters.fetching_pieces import InPieces
from llmgw_agent.adapters.sharing import Sharing


class PieceMetrics(Collector):
    """Read at each scrape. `sharing` None: this node gives nothing to others."""

    def __init__(self, pieces: InPieces, sharing: Sharing | None) -> None:
        self._pieces, self._sharing = pieces, sharing

    def collect(self) -> Iterator[Metric]:
        """llmgw_agent_pieces_*."""
        taken = CounterMetricFamily(
            "llmgw_agent_pieces_taken_bytes", "Bytes of weights that came in pieces, by source.",
            labels=["source"],
        )  # fmt: skip
        taken.add_metric(["mirror"], self._pieces.from_mirror)
        taken.add_metric(["node"], self._pieces.from_peers)
        yield taken
        given = 0 if self._sharing is None else self._sharing.sent_bytes
        yield CounterMetricFamily(
            "llmgw_agent_pieces_given_bytes", "Bytes of weights given to other nodes.", value=given
        )
