"""Header kinds are plain integers; two that mean different things are different numbers."""

from llmgw_router.core import heads


def test_no_two_kinds_share_a_number() -> None:
    for prefix in ("REQ_", "RES_"):
        kinds = {name: value for name, value in vars(heads).items() if name.startswith(prefix)}
        assert len(set(kinds.values())) == len(kinds), sorted(kinds.items(), key=lambda pair: pair[1])
