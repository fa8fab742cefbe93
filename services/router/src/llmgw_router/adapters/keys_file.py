"""Keys of the router's own file: there when it starts, replaced as a whole when the file is read again."""

from collections.abc import Sequence

from llmgw_router.core.keys import KeyRow
from llmgw_router.ports import KeysSink
from llmgw_router.settings_keys import KeyEntry


def rows(entries: Sequence[KeyEntry]) -> list[KeyRow]:
    """As the workers know them."""
    return [entry.row() for entry in entries]


def put_in_force(keys: Sequence[KeyRow], sink: KeysSink) -> None:
    """Tell every worker that these are all the keys there are. Whoever is not among them is refused from its
    next request on, also when the last one goes: a file that loses its keys opens nothing."""
    sink.push_keys(keys, whole=True)
