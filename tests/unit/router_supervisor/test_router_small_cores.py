"""Rotation over controllers, counters that survive their endpoints, and the model list."""

from llmgw_kit.addresses import HostPort
from llmgw_router.cold.models import model_objects
from llmgw_router.core.learned import CatalogEntry, Routes
from llmgw_router.core.ledger import Count, Ledger
from llmgw_router.core.rotation import Rotation
from llmgw_router.core.table import Availability, EndpointRow, ModelRow

A, B, C = HostPort("a", 1), HostPort("b", 1), HostPort("c", 1)


def test_a_silent_controller_gives_way_to_the_next_and_the_list_is_a_ring() -> None:
    rotation = Rotation(addresses=(A, B))
    assert [rotation.current, rotation.failed().current, rotation.failed().failed().current] == [A, B, A]


def test_a_standby_sends_to_the_leader_even_outside_the_list() -> None:
    pointed = Rotation(addresses=(A, B)).pointed(C)
    assert pointed.current == C
    # The leader died: who named it is asked again, it may know better by now.
    assert pointed.failed().current == A
    assert Rotation(addresses=(A, B)).pointed(B).current == B


def test_standbys_pointing_at_each_other_are_not_followed_for_ever() -> None:
    rotation, asked = Rotation(addresses=(A, B)), []
    for _ in range(8):
        asked.append(rotation.current)
        other = B if rotation.current == A else A
        rotation = rotation.pointed(other)
    assert rotation.hints_followed <= 3
    assert {A, B} == set(asked)


def test_a_standby_that_names_itself_or_nobody_is_left() -> None:
    for leader in (A, None):
        assert Rotation(addresses=(A, B)).pointed(leader).current == B


def test_counters_go_on_when_an_endpoint_leaves_and_when_its_column_starts_anew() -> None:
    ledger = Ledger()
    ledger.read([("m", "a@1", Count(picks=5, failed=1)), ("n", "b@1", Count(picks=1))])
    ledger.read([("n", "b@1", Count(picks=2))])
    ledger.read([("m", "a@2", Count(picks=1)), ("n", "b@1", Count(picks=1, broken=1))])
    assert ledger.totals() == {"m": Count(picks=6, failed=1), "n": Count(picks=3, broken=1)}


def routes(*models: ModelRow, endpoints: tuple[EndpointRow, ...] = ()) -> Routes:
    return Routes(
        endpoints={row.endpoint_id: row for row in endpoints},
        models={
            row.name: CatalogEntry(row=row, created=7 if row.name == "dated" else None) for row in models
        },
    )


def endpoint(model: str, *, draining: bool = False) -> EndpointRow:
    return EndpointRow(
        endpoint_id=f"{model}/1@1",
        replica_id=f"{model}/1",
        group_epoch=1,
        model=model,
        host="h",
        port=1,
        draining=draining,
    )


def status(made: dict[str, dict[str, object]]) -> dict[str, object]:
    return {name: one["status"] for name, one in made.items()}


def test_models_are_listed_whether_up_or_not_with_our_status() -> None:
    made = model_objects(
        routes(
            ModelRow(name="cold", availability=Availability.COLD, activatable=True, eta_s=40.0),
            ModelRow(name="dated", availability=Availability.STARTING),
            ModelRow(name="org/up", availability=Availability.READY, aliases=("chat", "cold")),
            ModelRow(name="stuck", availability=Availability.UNAVAILABLE, reason="no room"),
            ModelRow(name="just gone", availability=Availability.READY, activatable=True),
            ModelRow(name="leaving", availability=Availability.READY),
            endpoints=(endpoint("org/up"), endpoint("leaving", draining=True)),
        ),
        first_seen=1000,
    )
    assert status(made) == {
        "chat": "ready",
        "cold": "cold",
        "dated": "starting",
        "just gone": "cold",
        "leaving": "unavailable",
        "org/up": "ready",
        "stuck": "unavailable",
    }
    assert list(made) == sorted(made)
    assert (made["dated"]["created"], made["cold"]["created"]) == (7, 1000)
    assert (made["cold"]["eta_seconds"], made["stuck"]["status_reason"]) == (40.0, "no room")
    assert made["chat"]["alias_of"] == "org/up"
    assert all(one["object"] == "model" and one["owned_by"] for one in made.values())


def test_an_endpoint_beats_the_catalogs_word() -> None:
    made = model_objects(
        routes(ModelRow(name="m", availability=Availability.COLD), endpoints=(endpoint("m"),)), first_seen=1
    )
    assert status(made) == {"m": "ready"}
