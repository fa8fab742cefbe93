"""A worker's choices: where a request goes first, where it goes instead, and why it went there.

The rules are pure and stand in core/choosing; here they meet the exchange and the table. A model with one
endpoint passes through two comparisons: nothing is read or computed for it.
"""

from collections import deque
from typing import TYPE_CHECKING

from llmgw_router.core import errors
from llmgw_router.core.choosing import prompts
from llmgw_router.core.choosing.affinity import Match, PrefixMap, chain_of, scope_of, session_key
from llmgw_router.core.choosing.budget import RetryBudget
from llmgw_router.core.choosing.decision import Decision, decide
from llmgw_router.core.choosing.picking import ONLY, PANIC, PREFIX, SESSION, Field, earliest, pick
from llmgw_router.core.config import Choosing
from llmgw_router.relay.endpoint import ColdEndpoint
from llmgw_router.relay.ipc import Decisions
from llmgw_router.relay.phase import CONNECTING
from llmgw_router.relay.slots import COUNTER

if TYPE_CHECKING:
    from llmgw_router.core.table import ModelRow
    from llmgw_router.relay.endpoint import Endpoint, EngineEndpoint
    from llmgw_router.relay.exchange import Exchange
    from llmgw_router.relay.hub import Hub

_PANIC = COUNTER["picks_in_panic"]
_PREFIX = COUNTER["picks_by_prefix"]
_SESSION = COUNTER["picks_by_session"]
_UNSPENT = COUNTER["retries_over_budget"]


class Chooser:
    """One per worker."""

    def __init__(self, hub: "Hub", rules: Choosing) -> None:
        self._hub = hub
        self.rules = rules
        #: Requests that were given an endpoint, for the budget.
        self._requests = 0
        self._budget = RetryBudget(rules.retry_share, rules.retry_min_per_s, 0.0)
        self._prefixes = PrefixMap(rules.prefix_entries)
        #: By model and pools: the endpoints they were made of, what picks are made from, and the scope of
        #: prompts without a tenant.
        self._fields: dict[
            tuple[str | None, tuple[str, ...] | None],
            tuple[tuple[EngineEndpoint, ...], Field[EngineEndpoint], int],
        ] = {}
        self._kept: deque[Decision] = deque()
        self.reconfigure(rules)

    def reconfigure(self, rules: Choosing) -> None:
        """Other rules from the next pick on. What is known of prefixes and endpoints stays."""
        self.rules = rules
        self._budget.adjust(rules.retry_share, rules.retry_min_per_s)
        self._prefixes.resize(rules.prefix_entries)
        self._header = None if not rules.session_header else f"{rules.session_header.lower()}:".encode()
        self._opens = rules.prefix_affinity
        self._reads = rules.prefix_affinity or bool(rules.session_fields)
        self._names = tuple(rules.session_fields)
        self._keeps = rules.keep_decisions > 0
        self._kept = deque(self._kept, maxlen=rules.keep_decisions)

    def opens(self, path: bytes) -> bool:
        """Whether a body sent there will be looked into for its prompt: then it is decoded once for both."""
        return self._opens and self._hub.routes.contested and path in prompts.PATHS

    # --- where to

    def choose(
        self, exchange: "Exchange", endpoints: "tuple[EngineEndpoint, ...]"
    ) -> "EngineEndpoint | None":
        """The endpoint for a request that was sent nowhere yet. None: there is none that may be asked."""
        if not exchange.policy:
            # Not again when it comes out of a queue.
            self._requests += 1
        if len(endpoints) == 1 and exchange.profile.pools is None and not exchange.tried:
            only = endpoints[0]
            exchange.policy = ONLY
            if only.resting_until <= self._hub.now:
                if self._keeps or self._may_see(exchange):
                    self._note(exchange, self._field(exchange, endpoints)[1], only)
                return only
        return self._pick(exchange, endpoints)

    def again(self, exchange: "Exchange", failed: "EngineEndpoint") -> "EngineEndpoint | None":
        """Where to ask instead, by the newest table. None: nowhere, or asked often enough, or too late."""
        hub = self._hub
        tried = exchange.tried = exchange.tried or []
        if failed not in tried:
            tried.append(failed)
        profile = exchange.profile
        target = None if exchange.model is None else hub.routes.targets.get(exchange.model)
        if target is None or len(tried) > profile.max_retries:
            return None
        other = self._pick(exchange, target.endpoints)
        if other is None:
            return None
        if profile.total_s is not None:
            left_s = exchange.started + profile.total_s - hub.now
            if left_s <= (other.speed.first_s or 0.0):
                # It would be cut before its first byte: the cost of a prompt for nothing.
                return None
        # What never left for an engine has added nothing to anybody's load.
        if exchange.phase != CONNECTING and not self._budget.take(hub.now, self._requests):
            hub.counters[_UNSPENT] += 1
            return None
        return other

    def departs(self, exchange: "Exchange", endpoint: "Endpoint") -> None:
        """It is sent there now, which need not be where `choose` has said. Called where there is
        something to remember."""
        if isinstance(endpoint, ColdEndpoint):
            return
        if exchange.match is not None:
            self._prefixes.learn(exchange.match, endpoint.name)
        if endpoint.ejected:
            endpoint.warden.tries(endpoint, exchange)

    def _pick(self, exchange: "Exchange", endpoints: "tuple[EngineEndpoint, ...]") -> "EngineEndpoint | None":
        hub = self._hub
        pools = exchange.profile.pools
        known = self._fields.get((exchange.model, pools))
        if known is None or known[0] is not endpoints:
            known = self._field(exchange, endpoints)
        field = known[1]
        match = self._match(exchange, known[2]) if field.contested else None
        out = hub.warden.out
        found, policy = pick(
            field,
            self.rules,
            now=hub.now,
            chance=hub.chance(),
            match=match,
            tried=exchange.tried or (),
            ejected=[one for one in out if field.by_name.get(one.name) is one] if out else (),
        )
        exchange.policy = policy
        if policy is PREFIX:
            hub.counters[_PREFIX] += 1
        elif policy is SESSION:
            hub.counters[_SESSION] += 1
        elif policy is PANIC:
            hub.counters[_PANIC] += 1
        if self._keeps or self._may_see(exchange):
            self._note(exchange, field, found)
        return found

    def _field(
        self, exchange: "Exchange", endpoints: "tuple[EngineEndpoint, ...]"
    ) -> "tuple[tuple[EngineEndpoint, ...], Field[EngineEndpoint], int]":
        pools = exchange.profile.pools
        known = self._fields.get((exchange.model, pools))
        if known is not None and known[0] is endpoints:
            return known
        made = (
            endpoints,
            Field([one for one in endpoints if pools is None or one.row.pool in pools]),
            scope_of(pools, exchange.model or "", None),
        )
        if self._is_part(exchange, endpoints):
            # What goes on at one replica must not push out what is known of them all.
            return made
        if len(self._fields) > 2 * len(self._hub.routes.targets) + 64:
            # Models that are gone.
            self._fields.clear()
        self._fields[exchange.model, pools] = made
        return made

    def _is_part(self, exchange: "Exchange", endpoints: "tuple[EngineEndpoint, ...]") -> bool:
        """Whether these are not the model's endpoints but some that only this request needs."""
        target = None if exchange.model is None else self._hub.routes.targets.get(exchange.model)
        return target is not None and target.endpoints is not endpoints

    def _match(self, exchange: "Exchange", scope: int) -> Match | None:
        match = exchange.match
        if match is None:
            match = exchange.match = self._read(exchange, scope)
            if match is None:
                return None
        if match.policy is SESSION:
            self._prefixes.find_session(match)
        else:
            self._prefixes.find(match, self.rules)
        return match

    def _read(self, exchange: "Exchange", scope: int) -> Match | None:
        """What the request says of its session or its prompt. `scope`: of who has no tenant."""
        rules = self.rules
        session = None if self._header is None else _header_of(exchange, self._header)
        text = None
        if (
            session is None
            and self._reads
            and exchange.path in prompts.PATHS
            and len(exchange.body) <= rules.prefix_body_bytes
        ):
            # A form, or what is no JSON, says nothing here: the load decides (HO21).
            if exchange.said is not None:
                prompt: prompts.Prompt | None = prompts.prompt_of(exchange.said)
            elif rules.prefix_affinity:
                prompt = prompts.read(exchange.body)
            else:
                prompt = prompts.names(exchange.body)
            if prompt is not None:
                text = prompt.text
                if prompt.prompt_cache_key or prompt.user:
                    session = self._named(prompt)
        if session is None and not text:
            return None
        key = exchange.key
        if key is not None and key.tenant is not None:
            scope = scope_of(exchange.profile.pools, exchange.model or "", key.tenant)
        if session is not None:
            at = session_key(session, scope)
            return Match((at,), at & 0xFFFFFFFF, SESSION)
        chain = chain_of(text or b"", scope)
        return Match(chain, chain[0] & 0xFFFFFFFF, PREFIX) if chain else None

    def _named(self, prompt: prompts.Prompt) -> bytes | None:
        """The session that its body names, by the first of the members that count as one."""
        for name in self._names:
            value = prompt.user if name == "user" else prompt.prompt_cache_key
            if value:
                return value.encode()
        return None

    # --- why

    def _may_see(self, exchange: "Exchange") -> bool:
        key = exchange.key
        return self.rules.explain if key is None else key.explain

    def _note(
        self, exchange: "Exchange", field: "Field[EngineEndpoint]", found: "EngineEndpoint | None"
    ) -> None:
        tried = exchange.tried or ()
        told = decide(
            field,
            found,
            exchange.policy,
            exchange.match,
            request_id=(exchange.request_id or b"").decode("latin-1"),
            model=exchange.model or "",
            attempt=len(tried) + 1,
            now=self._hub.now,
            tried=tried,
        )
        if self._may_see(exchange):
            exchange.decision = told
        if self._keeps:
            self._kept.append(told)

    def flush(self) -> None:
        """Once per sweep: hand over what was kept for the admin listener."""
        if self._kept:
            told = tuple(self._kept)
            self._kept.clear()
            self._hub.tell(Decisions(decisions=told))

    def refuse(
        self, exchange: "Exchange", model: "ModelRow", endpoints: "tuple[EngineEndpoint, ...]"
    ) -> None:
        """Every endpoint has asked to be left alone, or none is in a pool that the request may use (W12).

        The number of `Retry-After` stands in the text too (HO10)."""
        usable = self._field(exchange, endpoints)[1].endpoints
        wait_s = earliest(usable, self._hub.now)
        seconds = errors.retry_after(wait_s)
        if wait_s is not None and self._is_part(exchange, endpoints):
            why = (
                f"The replica that holds what this request goes on with, {usable[0].name}, has asked to be "
                f"left alone for a while; it is asked again in {seconds} s."
            )
        elif wait_s is not None:
            why = (
                f"Every replica of the model `{model.name}` has asked to be left alone for a while; the "
                f"first one is asked again in {seconds} s."
            )
        elif usable:
            why = f"Every replica of the model `{model.name}` was asked for this request, in vain."
        else:
            why = (
                f"No replica of the model `{model.name}` is in a pool of the profile "
                f"`{exchange.profile.name}` ({', '.join(exchange.profile.pools or ())})."
            )
        exchange.refuse(errors.NO_REPLICA, why, retry_after_s=seconds)


def _header_of(exchange: "Exchange", name: bytes) -> bytes | None:
    lines = exchange.head
    known = exchange.known
    if known is not None and exchange.head is known.head:
        if known.lacks == name:
            return None
        if name not in known.low:
            known.lacks = name
            return None
    elif name not in b"\n".join(lines).lower():
        # As nearly always, and much cheaper than looking at each line.
        return None
    size = len(name)
    for line in lines:
        if line[:size].lower() == name:
            return line[size:].strip() or None
    return None
