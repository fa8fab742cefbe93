"""Who of a worker's endpoints is left alone: outcomes come in here when something is wrong, or was.

What goes well costs a request two additions (core/choosing/standing.py). Whether a model can spare an
endpoint is looked up in the table of that moment, over the few that are ejected, not over all.
"""

import logging
from typing import TYPE_CHECKING

from llmgw_router.core.choosing.ejection import ABSENT, may_eject, too_many
from llmgw_router.core.choosing.speed import outliers
from llmgw_router.core.choosing.standing import Reason
from llmgw_router.core.config import Choosing
from llmgw_router.relay.ipc import Probed, Suspects
from llmgw_router.relay.slots import COUNTER

if TYPE_CHECKING:
    from llmgw_router.relay.endpoint import EngineEndpoint
    from llmgw_router.relay.hub import Hub

_EJECTED = COUNTER["ejections"]
_SPARED = COUNTER["ejections_spared"]
_TRIALS = COUNTER["trials"]
_BACK = COUNTER["endpoints_back"]
_DENIED = COUNTER["endpoints_denied"]
_SLOW = COUNTER["endpoints_slow"]

#: Period in which speeds are compared.
_COMPARE_S = 5.0
#: A refused credential is an alarm this often.
_ALARM_S = 60.0
#: A health check that failed holds for so many periods: the next one is due long before.
_HOLDS = 3.0


class Warden:
    """One per worker."""

    def __init__(self, hub: "Hub", rules: Choosing) -> None:
        self._hub = hub
        self.rules = rules
        #: Those that are ejected.
        self.out: set[EngineEndpoint] = set()
        #: Would be ejected if their models could spare them.
        self._spared: set[EngineEndpoint] = set()
        self._slow: set[EngineEndpoint] = set()
        #: When a refused credential may be told of again, by endpoint id.
        self._alarms: dict[str, float] = {}
        self._told: tuple[str, ...] = ()
        self._compared_at = 0.0

    @property
    def now(self) -> float:
        """The coarse clock of this worker."""
        return self._hub.now

    # --- outcomes

    def failed(
        self, endpoint: "EngineEndpoint", by: object, reason: Reason, *, decisive: bool = False
    ) -> None:
        """A request got no usable answer there, or a broken one."""
        hub = self._hub
        if reason is Reason.DENIED and hub.now >= self._alarms.get(endpoint.name, 0.0):
            # A model's only endpoint stays in use: its every request would be a line.
            self._alarms[endpoint.name] = hub.now + _ALARM_S
            hub.counters[_DENIED] += 1
            hub.log(
                logging.ERROR,
                f"endpoint {endpoint.name} refuses this router's credential: a port that is another "
                "engine's by now, or a secret that has changed. Look at /debug/table of the admin listener.",
            )
        if endpoint.failed(hub.now, self.rules, by=by, decisive=decisive):
            self._eject(endpoint, reason)

    def tries(self, endpoint: "EngineEndpoint", by: object) -> None:
        """A request goes to an ejected endpoint."""
        endpoint.begin_trial(by, self._hub.now, self.rules)
        if endpoint.trial is by:
            self._hub.counters[_TRIALS] += 1

    def passed(self, endpoint: "EngineEndpoint") -> None:
        """Its trial gets an answer."""
        endpoint.passed(self._hub.now, self.rules)
        self._back(endpoint)

    def returned(self, endpoint: "EngineEndpoint") -> None:
        """It had left the table, and is in it again with what is known of it."""
        if endpoint.ejected:
            self.out.add(endpoint)

    def _back(self, endpoint: "EngineEndpoint") -> None:
        hub = self._hub
        self.out.discard(endpoint)
        hub.counters[_BACK] += 1
        hub.log(logging.INFO, f"endpoint {endpoint.name} answers again")

    def _eject(self, endpoint: "EngineEndpoint", reason: Reason) -> None:
        hub = self._hub
        if endpoint.leaving:
            return
        if not endpoint.ejected and not self._can_spare(endpoint, absent=reason in ABSENT):
            hub.counters[_SPARED] += 1
            self._spared.add(endpoint)
            if not endpoint.slow_until:
                # What fails at once has nothing outstanding: by its load it would be the best of all.
                endpoint.slow(hub.now, self.rules)
                self._slow.add(endpoint)
            return
        cool_down_s = endpoint.eject(hub.now, self.rules, reason)
        self.out.add(endpoint)
        self._spared.discard(endpoint)
        hub.counters[_EJECTED] += 1
        hub.log(
            logging.WARNING, f"endpoint {endpoint.name} is put aside for {cool_down_s:g} s: {reason.value}"
        )

    def _can_spare(self, endpoint: "EngineEndpoint", *, absent: bool) -> bool:
        """Whether each model that it serves has enough others."""
        share = self.rules.eject_most_share
        return all(
            may_eject(len(self._out_of(model)), len(target.endpoints), share, absent=absent)
            for model in endpoint.models
            if (target := self._hub.routes.targets.get(model)) is not None
        )

    def _out_of(self, model: str) -> "list[EngineEndpoint]":
        return [one for one in self.out if model in one.models and not one.leaving]

    # --- what else is heard

    def probed(self, message: Probed) -> None:
        """Health checks of the supervisor's, of endpoints that some worker suspects."""
        hub = self._hub
        hold_s = _HOLDS * (self.rules.probe_s or 1.0)
        for endpoint_id in message.dead:
            endpoint = hub.routes.find(endpoint_id)
            if endpoint is None:
                continue
            if not endpoint.ejected:
                self._eject(endpoint, Reason.UNHEALTHY)
            endpoint.looked_dead(hub.now, hold_s)
        for endpoint_id in message.alive:
            endpoint = hub.routes.find(endpoint_id)
            if endpoint is not None:
                self._spared.discard(endpoint)
                if endpoint.looked_alive(hub.now, self.rules):
                    self._back(endpoint)

    def sweep(self) -> None:
        """Once per sweep: forget who is gone or well again, keep to the cap, and tell whom we suspect."""
        now = self._hub.now
        if self.out or self._spared:
            # One that drains stays among them: a drain may be taken back, and it is ejected still.
            known = self._hub.routes.find
            self.out = {one for one in self.out if one.ejected and known(one.name) is one}
            self._spared = {one for one in self._spared if one.failures and not one.leaving}
            for endpoint in self._beyond_the_cap() | self._long_over(now):
                self.passed(endpoint)
        names = tuple(sorted(one.name for one in self.out | self._spared if not one.leaving))
        if names != self._told:
            self._told = names
            self._hub.tell(Suspects(endpoint_ids=names))
        if now - self._compared_at >= _COMPARE_S:
            self._compared_at = now
            self._alarms = {name: until for name, until in self._alarms.items() if until > now}
            self._compare(now)

    def _long_over(self, now: float) -> "set[EngineEndpoint]":
        """Nobody has needed them since their time was over: those of a tier that stands by, for one. On
        probation they are of use when the others fail, all at once."""
        return {one for one in self.out if one.avoid_until + self.rules.cool_down_most_s < now}

    def _beyond_the_cap(self) -> "set[EngineEndpoint]":
        """A model may have shrunk since its endpoints were ejected."""
        back: set[EngineEndpoint] = set()
        for model in {model for one in self.out for model in one.models}:
            target = self._hub.routes.targets.get(model)
            if target is not None:
                out = self._out_of(model)
                many = too_many(out, len(target.endpoints), self.rules.eject_most_share)
                back.update(one for one in out if one in many)
        return back

    # --- speed

    def _compare(self, now: float) -> None:
        for endpoint in [one for one in self._slow if one.slow_until <= now or one.leaving]:
            self._slow.discard(endpoint)
            endpoint.not_slow()
            endpoint.speed.forget()
        factor = self.rules.slow_factor
        if factor is None:
            return
        least = self.rules.slow_min_samples
        peers: dict[tuple[str, str], list[EngineEndpoint]] = {}
        for endpoint in self._hub.routes.endpoints():
            if endpoint.speed.firsts >= least and not endpoint.leaving:
                peers.setdefault((endpoint.row.model, endpoint.row.pool), []).append(endpoint)
        for (model, _), measured in peers.items():
            late = outliers(
                [(one, one.speed) for one in measured if not one.slow_until],
                factor=factor,
                min_samples=least,
            )
            for endpoint in measured:
                if endpoint in late:
                    self._slow_down(endpoint, model, now)
                elif not endpoint.slow_until and endpoint.slow_level:
                    endpoint.slow_level -= 1

    def _slow_down(self, endpoint: "EngineEndpoint", model: str, now: float) -> None:
        hub = self._hub
        target = hub.routes.targets.get(model)
        slow = sum(model in one.models for one in self._slow)
        if target is None or not may_eject(slow, len(target.endpoints), self.rules.eject_most_share):
            return
        endpoint.slow(now, self.rules)
        self._slow.add(endpoint)
        hub.counters[_SLOW] += 1
        hub.log(
            logging.WARNING,
            f"endpoint {endpoint.name} is much slower than the others of {model}: it gets little for "
            f"{endpoint.slow_until - now:g} s",
        )
