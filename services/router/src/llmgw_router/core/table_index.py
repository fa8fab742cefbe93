"""The routing table, kept up to date by changes: one costs what it touches, however long the table is.

A worker that rebuilt ten thousand rows because one endpoint drains would stand still for its streams
meanwhile. `build` of a whole table is the same code with everything as one change, so the two cannot
disagree.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from llmgw_router.core.table import EndpointRow, ModelRow, Table, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is new or different, and what is gone: endpoint ids and model names."""

    endpoints: tuple[EndpointRow, ...] = ()
    models: tuple[ModelRow, ...] = ()
    gone_endpoints: frozenset[str] = frozenset()
    gone_models: frozenset[str] = frozenset()


class TableIndex:
    """Rows in, targets by name out. An endpoint brings its models where no row names them (static mode).

    A model's own name beats anybody's alias; of two models with one alias the first by name wins,
    so that all workers agree.
    """

    def __init__(self) -> None:
        self.endpoints: dict[str, EndpointRow] = {}
        self.models: dict[str, ModelRow] = {}
        #: Model names and aliases alike.
        self.targets: dict[str, Target] = {}
        #: Name -> ids, sorted, of endpoints with a slot that answer to it; draining ones too.
        self._serving: dict[str, list[str]] = {}
        #: Alias -> names, sorted, of the models that claim it.
        self._claims: dict[str, list[str]] = {}

    def difference(self, endpoints: Iterable[EndpointRow], models: Iterable[ModelRow]) -> Change:
        """The change that makes this table the one of these rows."""
        rows = {row.endpoint_id: row for row in endpoints}
        named = {row.name: row for row in models}
        return Change(
            endpoints=tuple(row for key, row in rows.items() if self.endpoints.get(key) != row),
            models=tuple(row for name, row in named.items() if self.models.get(name) != row),
            gone_endpoints=frozenset(self.endpoints.keys() - rows.keys()),
            gone_models=frozenset(self.models.keys() - named.keys()),
        )

    def change(self, change: Change) -> frozenset[str]:
        """Apply it; returns the names whose target is now another, or none any more."""
        #: Models to look at again, and aliases whose claims changed.
        models: set[str] = set()
        aliases: set[str] = set()
        for endpoint_id in change.gone_endpoints:
            row = self.endpoints.pop(endpoint_id, None)
            if row is not None:
                models |= self._withdraw(row)
        for row in change.endpoints:
            before = self.endpoints.get(row.endpoint_id)
            if before is not None:
                models |= self._withdraw(before)
            self.endpoints[row.endpoint_id] = row
            models |= self._offer(row)
        for name in change.gone_models:
            gone = self.models.pop(name, None)
            if gone is not None:
                models.add(name)
                aliases |= self._claim(gone, _drop)
        for model in change.models:
            known = self.models.get(model.name)
            if known is not None:
                aliases |= self._claim(known, _drop)
            self.models[model.name] = model
            models.add(model.name)
            aliases |= self._claim(model, insort)
        return self._settle(models, aliases)

    def _settle(self, models: set[str], aliases: set[str]) -> frozenset[str]:
        own: dict[str, Target | None] = {name: self._target(name) for name in models}
        touched: dict[str, Target | None] = dict(own)
        for name in models:
            row = self.models.get(name)
            if row is not None:
                aliases.update(row.aliases)
        for alias in aliases - own.keys():
            touched[alias] = self._meant_by(alias, own)
        for name, target in own.items():
            if target is None:
                # No model of this name any more: somebody's alias may have waited for it.
                touched[name] = self._meant_by(name, own)
        for name, target in touched.items():
            if target is None:
                self.targets.pop(name, None)
            else:
                self.targets[name] = target
        return frozenset(touched)

    def _meant_by(self, alias: str, fresh: dict[str, Target | None]) -> Target | None:
        if self._exists(alias):
            return self.targets[alias] if alias not in fresh else fresh[alias]
        for name in self._claims.get(alias, ()):
            return fresh[name] if name in fresh else self.targets[name]
        return None

    def _exists(self, name: str) -> bool:
        return name in self.models or name in self._serving

    def _target(self, name: str) -> Target | None:
        ids = self._serving.get(name)
        row = self.models.get(name)
        if row is None:
            if ids is None:
                return None
            row = ModelRow(name=name)
        rows = self.endpoints
        return Target(row, tuple(key for key in ids or () if not rows[key].draining))

    def _withdraw(self, row: EndpointRow) -> set[str]:
        if row.slot is None:
            return set()
        names = {row.model, *row.also_models}
        for name in names:
            _drop(self._serving[name], row.endpoint_id)
            if not self._serving[name]:
                del self._serving[name]
        return names

    def _offer(self, row: EndpointRow) -> set[str]:
        if row.slot is None:
            return set()
        names = {row.model, *row.also_models}
        for name in names:
            insort(self._serving.setdefault(name, []), row.endpoint_id)
        return names

    def _claim(self, row: ModelRow, edit: Callable[[list[str], str], None]) -> set[str]:
        aliases = set(row.aliases)
        for alias in aliases:
            claims = self._claims.setdefault(alias, [])
            edit(claims, row.name)
            if not claims:
                del self._claims[alias]
        return aliases


def _drop(values: list[str], value: str) -> None:
    del values[bisect_left(values, value)]


def build(endpoints: Iterable[EndpointRow], models: Iterable[ModelRow]) -> Table:
    """A whole table from rows."""
    index = TableIndex()
    index.change(Change(endpoints=tuple(endpoints), models=tuple(models)))
    return Table(index.targets, index.endpoints)
