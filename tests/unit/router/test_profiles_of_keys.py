"""Keys of a database that may use a profile which this router does not have: said once."""

from llmgw_router.core.keys import KeyRow
from llmgw_router.supervisor.key_profiles import ProfilesOfKeys


def row(key_id: str, *profiles: str) -> KeyRow:
    return KeyRow(digest=key_id.encode(), key_id=key_id, profiles=profiles or None)


def test_each_is_said_once_and_again_only_after_it_was_there() -> None:
    seen = ProfilesOfKeys()
    rows = [row("a", "batch", "nope"), row("b"), row("c", "batch")]
    (said,) = seen.strange(rows, {"batch", "interactive"})
    assert "key a" in said
    assert "'nope'" in said
    assert "batch, interactive" in said
    assert seen.strange(rows, {"batch", "interactive"}) == []
    assert seen.strange(rows, {"batch", "nope"}) == []
    assert len(seen.strange(rows, {"batch"})) == 1
