"""At start: what an earlier agent process left, adopted or cleared away before anybody is told."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from llmgw_agent.core.adoption import Adoption, Facts, Found, Verdict, decide
from llmgw_agent.core.shard import Event, Exit, ProcessIdentity, Shard, ShardState, exited, step
from llmgw_agent.loops.node import Node
from llmgw_agent.ports import EngineLauncher, JournalLike, ProcessTable
from llmgw_kit.ids import ShardId

log = logging.getLogger(__name__)


async def take_over(
    node: Node,
    journalled: Mapping[ShardId, Shard],
    table: ProcessTable,
    launcher: EngineLauncher,
    journal: JournalLike,
) -> None:
    """Hand every journalled shard to `node` in the state it really is in."""
    boot_id = table.boot_id()
    holders = table.token_holders()
    for shard_id in sorted(journalled):
        shard = journalled[shard_id]
        facts = _facts(shard, table, boot_id, holders)
        adoption = decide(shard, facts)
        match adoption.verdict:
            case Verdict.KEEP:
                node.hold(shard)
            case Verdict.RESUME:
                # Unlaunched, so nothing is lost by waiting: the controller may have decided otherwise.
                log.info("shard %s: %s, no process; waiting for the controller", shard_id, shard.state.value)
                node.own(shard, confirmed=False)
            case Verdict.ADOPT:
                _adopt(node, shard, adoption, boot_id, launcher, journal)
            case Verdict.SWEEP | Verdict.GONE:
                if adoption.verdict is Verdict.SWEEP:
                    await table.sweep(shard.token, _leader_if_free(shard, facts))
                assert adoption.reason is not None
                log.warning("shard %s: %s: %s", shard_id, adoption.reason, adoption.because)
                ended = exited(shard, Exit(adoption.reason, f"while no agent ran: {adoption.because}"))
                _write(journal, ended)
                node.hold(ended)


def _facts(
    shard: Shard, table: ProcessTable, boot_id: str, holders: Mapping[str, tuple[Found, ...]]
) -> Facts:
    at_pid = table.process(shard.process.pid) if shard.process else None
    left = holders.get(shard.token, ()) if shard.token else ()
    if shard.process is not None and at_pid is None and shard.process.boot_id == boot_id:
        left = (*left, *table.session_members(shard.process.pid))
    return Facts(boot_id=boot_id, at_pid=at_pid, token_holders=left)


def _leader_if_free(shard: Shard, facts: Facts) -> int | None:
    """The session to end by its number, only while nobody else can have that number."""
    return shard.process.pid if shard.process is not None and facts.at_pid is None else None


def _adopt(
    node: Node, shard: Shard, adoption: Adoption, boot_id: str, launcher: EngineLauncher, journal: JournalLike
) -> None:
    assert adoption.process is not None
    adopted = adopt(shard, adoption.process, boot_id)
    assert adopted.process is not None
    assert adopted.token is not None
    running = launcher.adopt(adopted.process, adopted.token)
    _write(journal, adopted)
    log.info("shard %s: adopted pid %d, %s", shard.spec.shard_id, adopted.process.pid, adopted.state.value)
    node.own(adopted, running=running)


def adopt(shard: Shard, process: Found, boot_id: str) -> Shard:
    """The shard as its new agent sees it: the process it has, and no gauge until one was read."""
    identity = ProcessIdentity(process.pid, process.start_ticks, boot_id)
    adopted = replace(shard, process=identity, adopted=True, running=None, running_unknown=None)
    adopted = replace(adopted, probe_error=None, stalled_s=None)
    if adopted.state is ShardState.LAUNCHING:
        adopted = step(adopted, Event.LAUNCHED, because=f"found pid {process.pid} by its token")
    return adopted


def _write(journal: JournalLike, shard: Shard) -> None:
    try:
        journal.write(shard)
    except OSError as e:
        log.error("journal of shard %s cannot be written: %s", shard.spec.shard_id, e)
