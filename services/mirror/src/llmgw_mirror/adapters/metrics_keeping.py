"""Figures of what keeps the store, for Prometheus; beside metrics.py, which has those of fetching."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llmgw_kit.clock import Clock
from llmgw_mirror.adapters.open_reads import OpenReads
from llmgw_mirror.adapters.removals import Removals
from llmgw_mirror.adapters.store import Store
from llmgw_mirror.proving import Prover
from llmgw_mirror.upkeep import Upkeep


class KeepingCollector(Collector):
    """Runs in the thread that renders; reads only whole values."""

    def __init__(
        self, *, upkeep: Upkeep, prover: Prover, reads: OpenReads, store: Store, clock: Clock
    ) -> None:
        self._upkeep = upkeep
        self._prover = prover
        self._reads = reads
        self._store = store
        self._removals = Removals(store)
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        for name, told, count in (
            (
                "llmgw_mirror_proved_bytes",
                "Bytes of content read again to prove it.",
                self._prover.read_bytes,
            ),
            ("llmgw_mirror_quarantined", "Contents found damaged and set aside.", self._prover.quarantined),
            ("llmgw_mirror_readers_cut", "Answers broken off over damaged content.", self._reads.cut),
        ):
            counter = CounterMetricFamily(name, told)
            counter.add_metric([], count)
            yield counter
        proofs = [view.verified_at for view in self._upkeep.last_seen if view.verified_at is not None]
        if proofs:  # absent, not zero, while no version is whole
            yield GaugeMetricFamily(
                "llmgw_mirror_oldest_proof_age_seconds",
                "Since the content that was proved longest ago, of versions that are whole.",
                value=max(0.0, self._clock.unix_s() - min(proofs)),
            )
        try:
            damaged = sum(seen.st_size for _, seen in self._store.every_damaged())
            restorable = sum(one.bytes for one in self._removals.every())
        except OSError:
            return
        yield GaugeMetricFamily("llmgw_mirror_damaged_bytes", "Set aside as damaged.", value=damaged)
        yield GaugeMetricFamily(
            "llmgw_mirror_restorable_bytes",
            "Held by removed versions that can be restored.",
            value=restorable,
        )
