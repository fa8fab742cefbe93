"""The inside of this process, for whoever looks for a leak or a stall."""

import asyncio
import gc
import sys
import threading
import time
import traceback
from collections import Counter

from aiohttp import web

MOST_PROFILE_S = 60.0
_SAMPLE_S = 0.01
_MOST_FRAMES = 64


def debug_routes() -> list[web.RouteDef]:
    """Tasks, a profile, objects by type."""
    profiling = asyncio.Lock()

    async def tasks(_: web.Request) -> web.Response:
        return web.Response(text=task_stacks())

    async def profile(request: web.Request) -> web.Response:
        text = request.query.get("seconds", "5")
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds <= MOST_PROFILE_S:
            return web.Response(
                status=400, text=f"seconds={text}: expected more than 0, at most {MOST_PROFILE_S:g}\n"
            )
        if profiling.locked():
            return web.Response(status=409, text="a profile is being taken; ask again when it is done\n")
        async with profiling:
            return web.Response(text=await asyncio.to_thread(sample_stacks, threading.get_ident(), seconds))

    async def memory(_: web.Request) -> web.Response:
        counts = Counter(type(o).__qualname__ for o in gc.get_objects())
        return web.Response(text="".join(f"{count:>9} {name}\n" for name, count in counts.most_common(50)))

    return [
        web.get("/debug/tasks", tasks),
        web.get("/debug/profile", profile),
        web.get("/debug/memory", memory),
    ]


def task_stacks() -> str:
    """Every task of the running loop: name, state, where it waits."""
    parts = []
    for task in sorted(asyncio.all_tasks(), key=lambda t: t.get_name()):
        stack = "".join(
            f"    {frame.filename}:{frame.lineno} {frame.name}\n"
            for frame in traceback.StackSummary.extract((f, f.f_lineno) for f in task.get_stack(limit=20))
        )
        parts.append(f"{task.get_name()}\n{stack}")
    return "\n".join(parts)


def sample_stacks(thread_id: int, seconds: float) -> str:
    """Stacks of one thread, 100 a second, as `outermost;...;innermost count` lines. Blocks."""
    counts: Counter[str] = Counter()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        frame = sys._current_frames().get(thread_id)
        names: list[str] = []
        while frame is not None and len(names) < _MOST_FRAMES:
            code = frame.f_code
            names.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_qualname}")
            frame = frame.f_back
        counts[";".join(reversed(names))] += 1
        time.sleep(_SAMPLE_S)
    return "".join(f"{stack} {count}\n" for stack, count in counts.most_common())
