"""The leader's hold on the rows: one pen, the copy that it goes by, and the catalog that follows from it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from llmgw_controller.catalog_file import parse_model_json
from llmgw_controller.core.apply import apply
from llmgw_controller.core.catalog import Catalog, Model, Source, merged
from llmgw_controller.core.differences import differences
from llmgw_controller.core.plan import Change, PutEvent, Severity
from llmgw_controller.core.rows import Stored
from llmgw_controller.core.storing import as_storable
from llmgw_controller.leadership import Tenure
from llmgw_controller.ports import Store
from llmgw_kit.errors import InvalidRequest, Unavailable
from llmgw_kit.ids import ModelId

log = logging.getLogger(__name__)


#: The copy is compared with the rows so often, in seconds. They differ only by a bug, or when somebody has
#: written to the database by hand; that comes to count within this time.
CHECK_S = 30.0

#: Of many differences so many are named.
NAMED_MOST = 5


class Ledger:
    """Rows as this leader last read or wrote them. Nobody else writes controlled rows while the term holds,
    so between readings the copy goes on with what was committed here. It is read when the term begins, when
    the outcome of a write is unknown, and now and then as a check."""

    def __init__(self, store: Store, tenure: Tenure, configured: Sequence[Model]) -> None:
        self._store = store
        self._tenure = tenure
        self._configured = list(configured)
        self._pen = asyncio.Lock()
        self._stored = Stored()
        #: After a write of unknown outcome the copy may be wrong until it is read again.
        self._doubtful = True
        self._parsed: dict[ModelId, tuple[str, Model | None]] = {}
        #: Term clock of the moment when the copy was last known to be what the store holds: read, or held
        #: under a term that holds; None before the first reading.
        self.read_at: float | None = None
        self._checked_at = 0.0
        self._first_reading = asyncio.Event()
        self._told = asyncio.Event()
        self.catalog = merged(self._configured, [])

    @property
    def stored(self) -> Stored:
        """The copy; for views, and for decisions under `writing`."""
        return self._stored

    @property
    def known(self) -> bool:
        """The rows were read at least once in this term."""
        return self.read_at is not None

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Stored]:
        """Hold the pen: what is read inside stays true until the commit inside.

        Raises Unavailable when a doubtful copy cannot be read again."""
        async with self._pen:
            self._tenure.require()
            if self._doubtful:
                await self._read()
            # The term holds, so nobody else has written.
            self.read_at = self._tenure.now()
            yield self._stored

    def doubt(self) -> None:
        """The copy may be wrong: it is read again before anything is decided on it."""
        self._doubtful = True

    async def checked(self) -> Stored:
        """The copy, compared with the rows when that was last done long ago; under `writing` only. What is
        found to differ is told, and the rows are right. Raises Unavailable, and what `commit` raises."""
        assert self._pen.locked(), "rows are read under the pen"
        if self._tenure.now() - self._checked_at < CHECK_S:
            return self._stored
        before = self._stored
        await self._read()
        found = await asyncio.to_thread(differences, before, self._stored)
        if not found and before.evictions.keys() == self._stored.evictions.keys():
            # The same rows: what was found of ours serves on, and the next pass looks at none of them anew.
            self._stored = before
        if found:
            more = f" and {len(found) - NAMED_MOST} more" if len(found) > NAMED_MOST else ""
            text = f"not as this leader left them: {', '.join(found[:NAMED_MOST])}{more}; it goes by the rows"
            log.error("rows of the store are %s", text)
            event = PutEvent(self._tenure.now(), "rows_differ", self._store.kind, text, Severity.TROUBLE)
            await self.commit([event])
        return self._stored

    async def commit(self, changes: Sequence[Change]) -> None:
        """Write all or nothing; under `writing` only. Raises what the store raises, and Fenced."""
        assert self._pen.locked(), "rows are written under the pen"
        self._tenure.require()
        if not changes:
            return
        self._doubtful = True
        await self._store.commit(self._tenure.term, changes)
        # As the store has taken them: it holds no text that it cannot.
        self._take(apply(self._stored, [as_storable(change) for change in changes]))
        self._doubtful = False
        if any(isinstance(change, PutEvent) for change in changes):
            self.wake()

    async def _read(self) -> None:
        self._take(await self._store.load())
        self._doubtful = False
        self.read_at = self._checked_at = self._tenure.now()
        self._first_reading.set()

    def told(self) -> asyncio.Event:
        """Set once something more was written to the log of events, or the term has ended. Taken before a
        look at the log, nothing falls between the look and the wait."""
        return self._told

    def wake(self) -> None:
        """Whoever follows the log looks again."""
        woken, self._told = self._told, asyncio.Event()
        woken.set()

    async def until_known(self, most_s: float) -> None:
        """A view of a new term waits a moment for its rows. Raises Unavailable."""
        try:
            async with asyncio.timeout(most_s):
                await self._first_reading.wait()
        except TimeoutError:
            raise Unavailable(
                "the new leader has not read the rows yet", code="learning", retry_after_s=1.0
            ) from None

    def _take(self, stored: Stored) -> None:
        if stored.models != self._stored.models or self.read_at is None:
            self.catalog = self._merge(stored.models)
        self._stored = stored

    def _merge(self, texts: dict[ModelId, str]) -> Catalog:
        """A stored model that cannot be understood is told and left out; the others still serve (M16)."""
        parsed: dict[ModelId, tuple[str, Model | None]] = {}
        for name, text in sorted(texts.items()):
            known = self._parsed.get(name)
            parsed[name] = (
                known if known is not None and known[0] == text else (text, _understood(name, text))
            )
        self._parsed = parsed
        catalog = merged(self._configured, [model for _, model in parsed.values() if model is not None])
        for name in catalog.shadowed:
            log.warning("stored model %s is hidden by the configuration's model of that name", name)
        return catalog

    @property
    def not_understood(self) -> tuple[ModelId, ...]:
        """Stored models that this release cannot parse."""
        return tuple(name for name, (_, model) in self._parsed.items() if model is None)


def _understood(name: ModelId, text: str) -> Model | None:
    try:
        return parse_model_json(text, source=Source.STORED, where=f"stored model {name}")
    except InvalidRequest as e:
        log.error("%s; it is left out until it is applied again or removed", e.text)
        return None
