"""The words agents say of an exit, and what the controller makes of each: two tables, one meaning."""

from __future__ import annotations

import pytest

from llmgw_agent.core.reasons import REASONS, Concerns
from llmgw_controller.core.blame import BLAME, Blame

FOLLOWS = {
    Concerns.NOBODY: {Blame.NOBODY},
    Concerns.NODE: {Blame.NODE},
    Concerns.SUPPLY: {Blame.SUPPLY},
    Concerns.PROFILE: {Blame.START},
}
#: A stop that the controller did not ask for was somebody's on the node; of one that it did, nothing follows.
OWN_WORD = {"stopped": {Blame.NODE}}


@pytest.mark.parametrize("word", sorted(REASONS))
def test_the_controller_knows_each_word_and_looks_at_whom_it_concerns(word: str) -> None:
    concerns, _ = REASONS[word]
    assert BLAME[word] in OWN_WORD.get(word, FOLLOWS[concerns])
