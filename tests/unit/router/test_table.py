import pytest

from llmgw_router.core.table import (
    Availability,
    EndpointRow,
    ModelRow,
    Waiting,
    while_cold,
)
from llmgw_router.core.table_index import build


def row(
    name: str, model: str = "m", *, slot: int | None = 0, draining: bool = False, also: tuple[str, ...] = ()
) -> EndpointRow:
    return EndpointRow(
        endpoint_id=name,
        replica_id=name,
        group_epoch=1,
        model=model,
        also_models=also,
        host="h",
        port=1,
        slot=slot,
        draining=draining,
        credential="secret",
    )


def test_names_and_aliases_lead_to_what_is_routable() -> None:
    table = build(
        [row("b"), row("a"), row("c", draining=True), row("x", "n"), row("lost", slot=None)],
        [ModelRow(name="m", aliases=("gpt", "n")), ModelRow(name="n", aliases=("gpt",)), ModelRow(name="z")],
    )
    assert table.by_name["m"].endpoint_ids == ("a", "b")
    assert table.by_name["gpt"] is table.by_name["m"]
    # A model's own name beats anybody's alias.
    assert table.by_name["n"].endpoint_ids == ("x",)
    assert table.by_name["z"].endpoint_ids == ()
    assert "q" not in table.by_name
    assert set(table.endpoints) == {"a", "b", "c", "x", "lost"}


def test_an_endpoint_brings_models_that_nobody_configured() -> None:
    table = build([row("a", "m", also=("n",)), row("b", "n")], [])
    assert table.by_name["m"].endpoint_ids == ("a",)
    assert table.by_name["n"].endpoint_ids == ("a", "b")
    assert table.by_name["n"].model.availability is Availability.READY


def test_a_credential_is_not_printed() -> None:
    assert "secret" not in repr(row("a"))
    assert "secret" not in f"{build([row('a')], [])}"


HOLD, REFUSE = Waiting.HOLD, Waiting.REFUSE


@pytest.mark.parametrize(
    ("availability", "activatable", "wanted"),
    [
        (Availability.COLD, True, HOLD),
        (Availability.COLD, False, REFUSE),
        (Availability.STARTING, True, HOLD),
        (Availability.STARTING, False, HOLD),
        (Availability.READY, True, HOLD),
        (Availability.READY, False, REFUSE),
        (Availability.UNAVAILABLE, True, REFUSE),
        (Availability.UNAVAILABLE, False, REFUSE),
    ],
)
def test_only_what_can_come_up_is_waited_for(
    availability: Availability, activatable: bool, wanted: Waiting
) -> None:
    model = ModelRow(
        name="m", availability=availability, activatable=activatable, hold_timeout_s=1, max_held=1
    )
    assert while_cold(model) is wanted
    for bound in ({"hold_timeout_s": 0.0, "max_held": 1}, {"hold_timeout_s": 1.0, "max_held": 0}):
        barred = ModelRow(name="m", availability=availability, activatable=activatable, **bound)  # type: ignore[arg-type]
        assert while_cold(barred) is REFUSE
