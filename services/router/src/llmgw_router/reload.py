"""Settings that change while the router runs: read whole, checked whole, put in force whole or not at all.

A file that cannot be used, and one that asks for what only a restart can give, changes nothing; why is told
in the log, in the metrics and on the admin page, until a good one comes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from llmgw_kit.clock import Clock
from llmgw_kit.errors import LlmgwError
from llmgw_router.settings import RouterSettings

log = logging.getLogger(__name__)

#: Between two looks at the configuration file.
LOOK_S = 1.0

#: Read once, when sockets are opened and connections are made.
AT_START = frozenset(
    {
        "listen",
        "admin_listen",
        "metrics_listen",
        "controller",
        "mirror",
        "mirror_tls_ca",
        "mirror_tls_cert",
        "mirror_tls_key",
        "mirror_tls_name",
        "redis_url",
        "insecure",
        "workers",
        "router_id",
        "state_dir",
        "activity_tick_s",
        "activity_ttl_s",
        "database_url",
        "require_keys",
        "usage_file",
        "worker_hang_s",
        "log_style",
    }
)
#: Put in force by Router.adopt. A field in neither set waits for a restart, and a test asks for it.
WHILE_RUNNING = frozenset(
    {
        "endpoints",
        "drain_s",
        "unready_s",
        "request_head_s",
        "request_body_idle_s",
        "keepalive_s",
        "upstream_idle_s",
        "max_head_bytes",
        "max_body_bytes",
        "max_connections",
        "connect_s",
        "first_byte_s",
        "idle_s",
        "write_stall_s",
        "total_s",
        "profiles",
        "default_profile",
        "model_profiles",
        "admission",
        "choosing",
        "keys",
        "usage",
        "upstream_ca",
        "upstream_cert",
        "upstream_key",
        "cors_origins",
        "access_log",
        "access_log_file",
        "tracing",
        "log_level",
    }
)


@dataclass(frozen=True)
class Source:
    """Where settings come from: `read` gives them checked, or raises LlmgwError. `path`: the file, if any."""

    read: Callable[[], RouterSettings]
    path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one reload."""

    at_unix_s: float
    #: What asked for it: SIGHUP, the file, an operator.
    asked_by: str
    fine: bool
    #: Fields that differ; of a reload that failed, those that it could not change.
    fields: tuple[str, ...] = ()
    #: Lines: what is wrong and what to do. Empty when fine.
    why: tuple[str, ...] = ()


def changed(before: RouterSettings, after: RouterSettings) -> tuple[str, ...]:
    """Names of the fields that differ, in the order of the settings."""
    return tuple(
        name for name in RouterSettings.model_fields if getattr(before, name) != getattr(after, name)
    )


def needs_restart(before: RouterSettings, after: RouterSettings) -> tuple[str, ...]:
    """Names of the fields that differ and cannot change while the router runs."""
    names = [name for name in changed(before, after) if name not in WHILE_RUNNING]
    if before.guarded != after.guarded and "keys" in changed(before, after):
        # Whether a key is asked for at all decides where the client port listens.
        names.append("keys")
    if before.records_usage != after.records_usage:
        # Where usage goes is opened at the start.
        names.append("usage")
    return tuple(names)


class Reloader:
    """Knows the settings in force and the last attempt to change them."""

    def __init__(
        self, settings: RouterSettings, source: Source, apply: Callable[[RouterSettings], None], clock: Clock
    ) -> None:
        self.current = settings
        self.source = source
        self.loaded_at_unix_s = clock.unix_s()
        self.last: Outcome | None = None
        self.succeeded = 0
        self.failed = 0
        self._apply = apply
        self._clock = clock
        self._one = asyncio.Lock()
        #: The file as it was read last.
        self._loaded = None if source.path is None else _signature(source.path)

    async def reload(self, asked_by: str) -> Outcome:
        """Read the settings again and put them in force. Never raises for what is in them."""
        async with self._one:
            if self.source.path is not None:
                # Before it is read: what is written meanwhile is another change.
                self._loaded = _signature(self.source.path)
            try:
                # A list of ten thousand endpoints takes the parser a second: not on the loop.
                settings = await asyncio.to_thread(self.source.read)
            except LlmgwError as e:
                return self._told(self._refused(asked_by, tuple(e.lines())))
            except Exception as e:
                return self._bug(asked_by, e)
            stuck = needs_restart(self.current, settings)
            if stuck:
                which = ", ".join(stuck)
                lines = (f"{which}: cannot change while the router runs; nothing was changed",)
                step = "restart the router, or take these back"
                return self._told(self._refused(asked_by, (*lines, step), stuck))
            fields = changed(self.current, settings)
            try:
                self._apply(settings)
            except LlmgwError as e:
                return self._told(self._refused(asked_by, tuple(e.lines())))
            except Exception as e:
                return self._bug(asked_by, e)
            self.current = settings
            self.loaded_at_unix_s = self._clock.unix_s()
            self.succeeded += 1
            return self._told(
                Outcome(at_unix_s=self._clock.unix_s(), asked_by=asked_by, fine=True, fields=fields)
            )

    def _bug(self, asked_by: str, error: Exception) -> Outcome:
        # The rim: a router that serves must not end because of what stands in a file.
        log.exception("settings not reloaded (%s) for a bug of this router", asked_by)
        why = f"a bug of this router: {type(error).__name__}: {error}"
        return self._told(self._refused(asked_by, (why, "its log has the traceback; take the change back")))

    def _refused(self, asked_by: str, why: tuple[str, ...], fields: tuple[str, ...] = ()) -> Outcome:
        self.failed += 1
        return Outcome(at_unix_s=self._clock.unix_s(), asked_by=asked_by, fine=False, why=why, fields=fields)

    def _told(self, outcome: Outcome) -> Outcome:
        self.last = outcome
        if outcome.fine:
            log.info("settings reloaded (%s): %s", outcome.asked_by, ", ".join(outcome.fields) or "no change")
        else:
            log.error(
                "settings not reloaded (%s), the old ones stay: %s",
                outcome.asked_by,
                "; ".join(one.strip() for one in outcome.why),
            )
        return outcome

    async def watch(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Reload when the file has changed and is quiet again. For ever; at once where there is no file.

        By looking, not by inotify: a ConfigMap is swapped by its folder's link, an editor renames, a network
        file system tells nobody, and a `stat` a second costs nothing."""
        path = self.source.path
        if path is None:
            await asyncio.Event().wait()
            return
        seen = self._loaded
        while True:
            await sleep(LOOK_S)
            now = _signature(path)
            # Twice the same: who writes in place is done.
            if now == seen and now != self._loaded:
                await self.reload(f"{path} changed" if now is not None else f"{path} is gone")
            seen = now


def _signature(path: Path) -> tuple[int, int, int, int] | None:
    try:
        # Follows links: the swap of a link is a change of the file.
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
