"""What a long routing table costs: a change of one endpoint in supervisor and worker, and a look-up.

Pure CPU in one process, best of several rounds, for tables of growing length. A change should cost a
worker the same in all of them; the supervisor looks at every row once.

    python tests/bench/router_table.py
"""

import random
import time
from collections.abc import Callable

import msgspec

from llmgw_router.core.table_index import Change, TableIndex
from llmgw_router.relay import ipc
from llmgw_router.relay.slots import Slots
from llmgw_router.supervisor.pushes import Pushes
from llmgw_router.supervisor.slot_book import SlotBook

ROUNDS = 7


def best_us(work: Callable[[], object], *, times: int = 1) -> float:
    """Microseconds a call, in the fastest of the rounds."""
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(times):
            work()
        found.append((time.perf_counter_ns() - began) / times / 1000)
    return min(found)


def row(number: int, models: int) -> ipc.EndpointRow:
    return ipc.EndpointRow(
        endpoint_id=f"r-{number:05}@1",
        replica_id=f"r-{number:05}",
        group_epoch=1,
        model=f"model-{number % models}",
        host="10.0.0.1",
        port=20_000 + number % 5000,
    )


def measure(endpoints: int) -> list[float]:
    models = max(1, endpoints // 5)
    rows = {made.endpoint_id: made for made in (row(n, models) for n in range(endpoints))}
    slots = Slots.create(workers=2, capacity=endpoints)
    try:
        pushes = Pushes(SlotBook(slots))
        pushes.push(ipc.TableUpdate(endpoints=tuple(rows.values())))
        frame = ipc.pack(pushes.whole())
        decode_us = best_us(lambda: ipc.decode_down(frame[4:]))
        whole = pushes.whole()

        def begin() -> TableIndex:
            index = TableIndex()
            index.change(index.difference(whole.endpoints, whole.models))
            return index

        index = begin()
        drawn = random.Random(1)
        ids = list(rows)

        def flip() -> ipc.TableDelta:
            key = drawn.choice(ids)
            rows[key] = msgspec.structs.replace(rows[key], draining=not rows[key].draining)
            return pushes.push(ipc.TableUpdate(endpoints=tuple(rows.values())))

        def learn() -> None:
            key = drawn.choice(ids)
            known = index.endpoints[key]
            index.change(Change(endpoints=(msgspec.structs.replace(known, draining=not known.draining),)))

        return [
            best_us(begin) / 1000,
            decode_us / 1000,
            best_us(flip, times=5),
            best_us(learn, times=200),
            best_us(lambda: index.targets.get("model-0"), times=10_000),
        ]
    finally:
        slots.close()


def main() -> None:
    print("endpoints   index ms   decode ms   push of one us   learn one us   look-up us")
    for endpoints in (100, 1_000, 10_000):
        begin, decode, push, learn, look_up = measure(endpoints)
        print(f"{endpoints:9}  {begin:9.2f}  {decode:10.2f}  {push:15.1f}  {learn:13.2f}  {look_up:11.3f}")


if __name__ == "__main__":
    main()
