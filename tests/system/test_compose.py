"""The stack of deploy/compose.yaml, walked as a user walks it and broken as machines break it.

One stack serves all tests of this file, in order; each leaves it as it found it. A machine that cannot start
a container engine fails here with the reason: a silent skip would look like a pass.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from compose_stack import CONTROLLERS, SERVICES, WORK, Process, Stack, running_stack
from openai import OpenAI

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

#: The defaults of the controller: a leader that dies is followed within ttl + 2 s.
LEASE_TTL_S = 10.0
FAILOVER_MARGIN_S = 2.0
#: Long enough that a leader can die in the middle: SmolLM2 gives some 30–60 tokens a second on one core.
STREAM_TOKENS = 200
COLD_START_S = 120.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack() as running:
        yield running


@pytest.fixture(autouse=True)
def logs_on_failure(request: pytest.FixtureRequest, stack: Stack) -> Iterator[None]:
    failed_before = request.session.testsfailed
    yield
    if request.session.testsfailed > failed_before:
        stack.tell_logs()


@pytest.fixture
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stack.url}/v1", api_key="unused", timeout=COLD_START_S, max_retries=0) as made:
        yield made


@dataclass
class Stream:
    """What a client saw of one streamed answer."""

    words: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    completion_tokens: int | None = None
    #: Set once a few tokens have come: the middle of the stream has begun.
    under_way: threading.Event = field(default_factory=threading.Event)


def chat(client: OpenAI, model: str, *, tokens: int, into: Stream | None = None) -> Stream:
    """One streamed chat of exactly `tokens` tokens, collected as it comes."""
    seen = into or Stream()
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Tell me a long story about a lighthouse."}],
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    for chunk in answer:
        if chunk.usage is not None:
            seen.completion_tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            seen.words.append(choice.delta.content or "")
            seen.finish_reason = choice.finish_reason or seen.finish_reason
        if len(seen.words) >= 10:
            seen.under_way.set()
    return seen


def leader(stack: Stack, *, through: str) -> tuple[str, int] | None:
    """Name and term of the leading controller as the given one knows it; None while it knows none."""
    known = stack.ctl("version", through=through, asking=(through,))
    return None if known["leader_name"] is None else (known["leader_name"], known["term"])


@dataclass(frozen=True)
class RunningEngine:
    """The process of a ready replica's one shard: as the controller was told, and found in the container."""

    node: str
    process: Process


def find_engine(stack: Stack, model: str, *, through: str) -> RunningEngine | None:
    """The engine that serves a model, under the agent whose service is named like its node.

    None while the controller knows of no ready replica with a living process.
    """
    rows = stack.ctl("replicas", through=through)["replicas"]
    ready = [row for row in rows if row["model"] == model and row["phase"] == "READY"]
    if not ready or ready[0]["shards"][0]["pid"] is None:
        return None
    (replica,) = ready
    (shard,) = replica["shards"]
    running = [p for p in stack.processes(shard["node"]) if p.pid == shard["pid"]]
    if not running:
        return None
    assert running[0].started_ticks == shard["pid_start_ticks"], (
        "the agent speaks of another process of this pid"
    )
    return RunningEngine(shard["node"], running[0])


def engine_of(stack: Stack, model: str, *, through: str = "controller-1") -> RunningEngine:
    """As `find_engine`, of a model that has just answered."""
    found = find_engine(stack, model, through=through)
    assert found is not None, f"{model} answers, and no ready replica with a process is known"
    return found


def is_adopted(stack: Stack, engine: RunningEngine) -> bool:
    """Whether the agent of now says that it took over this very process from an agent before it."""
    shards = [shard for row in stack.ctl("replicas")["replicas"] for shard in row["shards"]]
    return any(
        shard["node"] == engine.node
        and shard["pid"] == engine.process.pid
        and shard["pid_start_ticks"] == engine.process.started_ticks
        and shard["adopted"]
        for shard in shards
    )


def agent_process(stack: Stack, service: str) -> Process | None:
    """The agent itself under the supervisor of its container; None between its death and its return."""
    serving = [p for p in stack.processes(service) if "serve" in p.argv and "supervise" not in p.argv]
    assert len(serving) < 2, f"two agents in one container: {serving}"
    return serving[0] if serving else None


def wait_for(what: str, seconds: float, holds: Callable[[], bool], *, every_s: float = 0.3) -> float:
    """Ask until it holds; return how long that took, fail with `what` when it does not."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if holds():
            return time.monotonic() - began
        time.sleep(every_s)
    raise AssertionError(f"after {seconds:g} s still not: {what}")


def asked_when_true(seconds: float, question: Callable[[], bool], *, every_s: float = 0.5) -> float | None:
    """Ask at intervals without waiting for answers: when the first question was put that got a yes.

    A question costs a program's start, seconds on a busy machine; put one after the other, they would add
    that to what is measured. None: no yes in time.
    """

    def one() -> float | None:
        asked = time.monotonic()
        return asked if question() else None

    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        asked: list[Future[float | None]] = []
        while time.monotonic() - began < seconds and not any(each.done() and each.result() for each in asked):
            if sum(not each.done() for each in asked) < 4:
                asked.append(pool.submit(one))
            time.sleep(every_s)
    return min((when for each in asked if (when := each.result()) is not None), default=None)


def test_every_container_is_closed_as_far_as_its_work_allows(stack: Stack) -> None:
    password = (WORK / "secrets" / "postgres_password").read_text().strip()
    for service in (*SERVICES, "postgres", "redis"):
        seen = stack.inspect(service)
        host = seen["HostConfig"]
        assert seen["Config"]["User"] not in ("", "0", "root"), service
        assert host["ReadonlyRootfs"], service
        assert host["CapDrop"] == ["ALL"], service
        assert "no-new-privileges:true" in host["SecurityOpt"], service
        published = [at["HostIp"] for ports in (host["PortBindings"] or {}).values() for at in ports]
        assert published == (["127.0.0.1"] if service == "router" else []), service
        assert password not in json.dumps(seen), f"{service} shows the password to whoever may inspect it"


def test_an_image_holds_its_own_service_and_nothing_to_fetch_with(stack: Stack) -> None:
    packages = {"router", "controller", "agent", "mirror"}
    own_only = f"[n for n in {sorted(packages)} if importlib.util.find_spec('llmgw_' + n)]"
    tools = "[t for t in ('curl', 'wget', 'pip', 'uv', 'gcc') if shutil.which(t)]"
    script = f"import importlib.util, shutil; print({own_only}, {tools})"
    for service in SERVICES:
        own = service.partition("-")[0]
        assert stack.execute(service, "python", "-c", script).strip() == f"['{own}'] []", service


def test_a_cold_model_answers_the_official_client_through_the_published_port(
    stack: Stack, client: OpenAI
) -> None:
    assert {"tiny", "smollm2"} <= {model.id for model in client.models.list()}
    states = {row["id"]: row["state"] for row in stack.ctl("models")["models"]}
    assert states["tiny"] == "cold"
    answer = chat(client, "tiny", tokens=20)
    assert answer.completion_tokens == 20
    assert answer.finish_reason == "length"
    assert "".join(answer.words).strip()


def test_a_stream_outlives_the_leading_controller_and_the_standby_leads(stack: Stack, client: OpenAI) -> None:
    chat(client, "smollm2", tokens=4)  # Warm: the stream below is to be in flight at once.
    known = leader(stack, through="controller-1")
    assert known is not None
    old_leader, old_term = known
    standby = next(name for name in CONTROLLERS if name != old_leader)
    engine_before = engine_of(stack, "smollm2", through=standby)
    stream = Stream()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(chat, client, "smollm2", tokens=STREAM_TOKENS, into=stream)
        assert stream.under_way.wait(COLD_START_S), reading.exception(timeout=5)
        killed_at = time.monotonic()
        stack.docker("kill", "--signal", "KILL", stack.container(old_leader))
        assert not reading.done(), "the stream was over before the leader died; make it longer"
        try:
            new = (standby, old_term + 1)
            seen_at = asked_when_true(LEASE_TTL_S + 30, lambda: leader(stack, through=standby) == new)
            assert seen_at is not None, f"{standby} did not take the lead"
            assert seen_at - killed_at <= LEASE_TTL_S + FAILOVER_MARGIN_S
            reading.result(timeout=COLD_START_S)
            assert stream.finish_reason == "length"
            assert stream.completion_tokens == STREAM_TOKENS
            assert chat(client, "smollm2", tokens=4).completion_tokens == 4
            wait_for(
                "the engine is the same",
                30,
                lambda: find_engine(stack, "smollm2", through=standby) == engine_before,
            )
        finally:
            stack.docker("start", stack.container(old_leader))
    wait_for(
        f"{old_leader} is back",
        60,
        lambda: stack.inspect(old_leader)["State"]["Health"]["Status"] == "healthy",
    )
    assert leader(stack, through=old_leader) == (standby, old_term + 1), (
        "a returning controller took the lead"
    )


def test_a_killed_agent_process_comes_back_to_its_running_engine(stack: Stack, client: OpenAI) -> None:
    chat(client, "smollm2", tokens=4)
    engine_before = engine_of(stack, "smollm2")
    assert not is_adopted(stack, engine_before)
    node = engine_before.node
    agent_before = agent_process(stack, node)
    assert agent_before is not None
    container_started = stack.inspect(node)["State"]["StartedAt"]
    stream = Stream()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(chat, client, "smollm2", tokens=STREAM_TOKENS, into=stream)
        assert stream.under_way.wait(COLD_START_S), reading.exception(timeout=5)
        stack.execute(node, "python", "-c", f"import os; os.kill({agent_before.pid}, 9)")
        assert not reading.done(), "the stream was over before the agent died; make it longer"
        while not reading.done():
            # Routing does not need the agent: new requests are answered while it is away.
            assert chat(client, "smollm2", tokens=2).completion_tokens == 2
        assert reading.result().completion_tokens == STREAM_TOKENS
    wait_for("a new agent process runs", 30, lambda: agent_process(stack, node) not in (None, agent_before))
    wait_for("it has adopted its engine", 60, lambda: is_adopted(stack, engine_before))
    assert engine_of(stack, "smollm2") == engine_before
    assert stack.inspect(node)["State"]["StartedAt"] == container_started, (
        "the container restarted, not the process"
    )
    assert chat(client, "smollm2", tokens=4).completion_tokens == 4


def test_a_reboot_in_no_order_ends_with_everything_serving(stack: Stack, client: OpenAI) -> None:
    everything = (*SERVICES, "postgres", "redis")
    stack.compose("stop", timeout_s=90)
    for service in everything:
        state = stack.inspect(service)["State"]
        assert (state["ExitCode"], state["OOMKilled"]) == (0, False), (
            f"{service} did not end by itself when told to"
        )
    for service in SERVICES:
        stack.docker("start", stack.container(service))
    # What everything stands on comes last, as it may after a power cut: nobody gives up, nobody needs a hand.
    time.sleep(5)
    for service in ("postgres", "redis"):
        stack.docker("start", stack.container(service))

    def healthy() -> bool:
        return all(stack.inspect(service)["State"]["Health"]["Status"] == "healthy" for service in everything)

    wait_for("every container is healthy", 120, healthy, every_s=2)
    assert [stack.inspect(service)["RestartCount"] for service in SERVICES] == [0] * len(SERVICES)
    assert chat(client, "tiny", tokens=8).completion_tokens == 8
