"""What an operator puts aside here, over every table; and static endpoints whose address changes."""

from hypothesis import given
from hypothesis import strategies as st

from llmgw_kit.testing.clock import FakeClock
from llmgw_router.board import Board, Source
from llmgw_router.core.generations import Generations
from llmgw_router.core.learned import Routes
from llmgw_router.core.marks import Marks
from llmgw_router.core.table import EndpointRow
from llmgw_router.relay.ipc import ActivationRefused, TableUpdate
from llmgw_router.relay.slots import EndpointActivity


class Workers:
    def __init__(self) -> None:
        self.pushed: list[TableUpdate] = []

    def push_table(self, update: TableUpdate) -> None:
        self.pushed.append(update)

    def refuse(self, refusal: ActivationRefused) -> None: ...

    def activity(self) -> list[tuple[EndpointRow, EndpointActivity]]:
        return []

    @property
    def held(self) -> dict[str, int]:
        return {}

    @property
    def draining(self) -> set[str]:
        return {row.endpoint_id for row in self.pushed[-1].endpoints if row.draining}


def row(replica: str, epoch: int = 1, *, draining: bool = False, port: int = 1) -> EndpointRow:
    return EndpointRow(
        endpoint_id=f"{replica}@{epoch}",
        replica_id=replica,
        group_epoch=epoch,
        model="m",
        host="h",
        port=port,
        draining=draining,
    )


def routes(*rows: EndpointRow, version: int = 1) -> Routes:
    return Routes(term=1, version=version, endpoints={one.endpoint_id: one for one in rows})


def test_a_mark_is_on_top_of_the_table_and_survives_the_next_one() -> None:
    workers = Workers()
    board = Board(workers, FakeClock())
    board.publish(routes(row("a"), row("b")), Source.CONTROLLER)
    board.mark(board.marks.with_endpoint("a@1", undo=False))
    assert workers.draining == {"a@1"}
    board.publish(routes(row("a"), row("b"), row("c"), version=2), Source.CONTROLLER)
    assert workers.draining == {"a@1"}
    # A mark on a replica holds for the group epochs to come.
    board.mark(board.marks.with_replica("b", undo=False))
    board.publish(routes(row("a"), row("b", 2), version=3), Source.CONTROLLER)
    assert workers.draining == {"a@1", "b@2"}
    board.mark(board.marks.with_endpoint("a@1", undo=True))
    board.mark(board.marks.with_replica("b", undo=True))
    assert workers.draining == set()
    # What is shown is what the controller says.
    assert not any(one.draining for one in board.routes.endpoints.values())


def test_taking_a_mark_back_does_not_take_the_controllers_drain_back() -> None:
    workers = Workers()
    board = Board(workers, FakeClock())
    board.publish(routes(row("a", draining=True)), Source.CONTROLLER)
    board.mark(board.marks.with_endpoint("a@1", undo=False))
    board.mark(board.marks.with_endpoint("a@1", undo=True))
    assert workers.draining == {"a@1"}


def test_the_controller_is_told_only_of_drains_that_it_asked_for() -> None:
    workers = Workers()
    board = Board(workers, FakeClock())
    board.publish(routes(row("a"), row("b", draining=True)), Source.CONTROLLER)
    board.mark(board.marks.with_endpoint("a@1", undo=False))
    board.applied()
    board.drained(["a@1", "b@1"])
    assert board._acknowledged is not None
    assert board._acknowledged.drained == {"b@1"}
    # It asks for the other one now: that is empty already, and was told once and for all.
    board.publish(routes(row("a", draining=True), row("b", draining=True), version=2), Source.CONTROLLER)
    board.applied()
    assert board._acknowledged.drained == {"a@1", "b@1"}


def test_an_unmarked_board_pushes_nothing_new() -> None:
    workers = Workers()
    board = Board(workers, FakeClock())
    board.publish(routes(row("a")), Source.CONTROLLER)
    board.mark(Marks())
    assert len(workers.pushed) == 1


def test_another_address_under_a_name_is_another_endpoint() -> None:
    generations = Generations()
    assert generations.named([row("a", port=1)]) == (row("a", port=1),)
    (second,) = generations.named([row("a", port=2)])
    assert (second.endpoint_id, second.replica_id, second.group_epoch) == ("a@1~2", "a", 2)
    # Its weight or credential is not its address.
    assert generations.named([second])[0].endpoint_id != "a@1"
    assert generations.named([row("a", port=1)]) == (row("a", port=1),)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), max_size=30))
def test_ids_and_addresses_are_one_to_one(tables: list[tuple[str, int]]) -> None:
    generations, address_of = Generations(), {}
    for name, port in tables:
        (made,) = generations.named([row(name, port=port)])
        assert address_of.setdefault(made.endpoint_id, (name, port)) == (name, port)
    assert len(address_of) == len(set(tables))
