"""The admin listener's first page: how this router is, in one look, and where to look further.

Plain HTML made here, without script and without anything from elsewhere: it is opened when things are bad.
"""

from collections.abc import Iterable
from html import escape
from typing import Any

from llmgw_router.adapters.admin_views import table_view
from llmgw_router.operations import Operations

#: Rows of a table on the page; all of them are behind its link.
_MOST_ROWS = 50

_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;max-width:70rem;margin:1.5rem auto;padding:0 1rem;color:#1c2024;
background:#fff}
h1{font-size:1.3rem;margin:0 0 .2rem}h2{font-size:1rem;margin:1.6rem 0 .4rem}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.22rem .8rem .22rem 0;
border-bottom:1px solid #e4e7ea;vertical-align:top}th{font-weight:600;color:#5b6570}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}code,pre{font:13px/1.5 ui-monospace,monospace}
.good{color:#14693a}.bad{color:#a4161a;font-weight:600}.quiet{color:#5b6570}pre{background:#f5f6f7;
padding:.6rem .8rem;overflow-x:auto;margin:.4rem 0}
@media(prefers-color-scheme:dark){body{background:#16191c;color:#e3e6e8}th,td{border-color:#2c3136}
th,.quiet{color:#98a2ab}pre{background:#20252a}.good{color:#6cc48f}.bad{color:#ff8a80}a{color:#8ab4f8}}
"""

_LINKS = (
    ("/metrics", "Prometheus"),
    ("/healthz", "the loop turns"),
    ("/readyz", "requests find their way"),
    ("/admin/routes", "endpoints and models in force, in-flight counts; credentials masked"),
    ("/admin/requests", "what runs now: id, model, endpoint, phase, age"),
    ("/admin/workers", "relay workers: pid, serving, applied table, deaths, hangs, loop lag"),
    ("/admin/config", "settings in force, secrets masked; the last reload and what was wrong with it"),
    ("/debug/tasks", "asyncio tasks of the supervisor, with stacks"),
    ("/debug/profile?seconds=5", "sampled stacks of the supervisor, collapsed (flamegraph.pl, speedscope)"),
    ("/debug/memory", "objects of the supervisor by type"),
)


async def page(operations: Operations) -> str:
    """The whole document."""
    router = operations.router
    ready, why = await router.ready()
    address = router.pool.addresses[0] if router.pool.addresses else "closed"
    state = f'<span class="{"good" if ready else "bad"}">{"ready" if ready else "not ready"}</span>'
    table = table_view(operations)
    return "".join(
        (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>llmgw-router</title>',
            f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>',
            f"<h1>llmgw-router on {escape(str(address))}</h1><p>{state}: {escape(why)}</p>",
            _config(operations),
            _workers(operations),
            _endpoints(table["endpoints"]),
            _held(table["held"]),
            _links(),
            "</html>\n",
        )
    )


def _config(operations: Operations) -> str:
    last = operations.reloader.last
    if last is None or last.fine:
        return ""
    lines = "\n".join(escape(one) for one in last.why)
    return (
        '<h2 class="bad">The configuration was changed and could not be used: the old one is in force</h2>'
        f"<pre>{lines}</pre>"
    )


def _workers(operations: Operations) -> str:
    rows = (
        (
            str(one.worker),
            "-" if one.pid is None else str(one.pid),
            "serving" if one.serving else "down",
            str(one.deaths),
            str(one.hangs),
            "-" if one.lag_s is None else f"{one.lag_s * 1000:.1f}",
        )
        for one in operations.router.pool.workers
    )
    heads = ("worker", "pid", "state", "deaths#", "hangs#", "loop lag ms#")
    return f"<h2>Relay workers</h2>{_table(heads, rows)}"


def _endpoints(endpoints: list[dict[str, Any]]) -> str:
    rows = (
        (
            str(one["endpoint_id"]),
            ", ".join((one["model"], *one["also_models"])),
            f"{one['host']}:{one['port']}{one['base_path']}",
            "drained here" if one["drained_here"] else "draining" if one["draining"] else "in use",
            *(
                "-" if one[key] is None else str(one[key])
                for key in ("in_flight", "picks", "failed", "broken")
            ),
        )
        for one in endpoints[:_MOST_ROWS]
    )
    heads = ("endpoint", "model", "address", "state", "in flight#", "picks#", "failed#", "broken#")
    more = len(endpoints) - _MOST_ROWS
    rest = f'<p><a href="/admin/routes">{more} more</a></p>' if more > 0 else ""
    return f"<h2>Endpoints ({len(endpoints)})</h2>{_table(heads, rows)}{rest}"


def _held(held: dict[str, int]) -> str:
    if not held:
        return ""
    rows = ((model, str(count)) for model, count in sorted(held.items())[:_MOST_ROWS])
    return f"<h2>Held until their model is up</h2>{_table(('model', 'requests#'), rows)}"


def _links() -> str:
    rows = "".join(
        f'<tr><td><a href="{escape(path)}"><code>{escape(path)}</code></a></td><td>{escape(text)}</td></tr>'
        for path, text in _LINKS
    )
    calls = "\n".join(
        (
            "POST /admin/drain?endpoint=ID        no new requests there; or replica=ID; &amp;undo ends it",
            "POST /admin/drain                    not ready, and serving on; ?undo ends it",
            "POST /admin/reload                   read the settings again, as SIGHUP does",
            "GET  /admin/explain/REQUEST-ID       what is known of a finished request",
        )
    )
    return f"<h2>Look further</h2><table>{rows}</table><h2>Do, and ask by name</h2><pre>{calls}</pre>"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A head that ends in # is of a column of numbers."""
    names = tuple(heads)
    kinds = [' class="n"' if name.endswith("#") else "" for name in names]
    head = "".join(f"<th{kind}>{escape(name.rstrip('#'))}" for kind, name in zip(kinds, names, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}" for kind, cell in zip(kinds, row, strict=True))
        for row in rows
    )
    return f"<table><tr>{head}{body}</table>"
