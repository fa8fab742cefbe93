"""Exact command lines of every engine, from their documented flags; nothing needs them installed."""

from dataclasses import replace
from typing import Any

import pytest

from llmgw_agent.core.progress import Numbers
from llmgw_agent.core.spec import ShardSpec
from llmgw_agent.engines.base import Launch, Surroundings, parse_numbers, probes
from llmgw_agent.engines.catalog import ENGINES, engine_named
from llmgw_agent.engines.llamacpp_main import arguments
from llmgw_kit.errors import InvalidRequest
from llmgw_kit.ids import ReplicaId, ShardId

AROUND = Surroundings("10.0.0.5", "/w/files", "/venv/bin/python", "/a/llamacpp_main.py", "vllm", "python3")


def spec(engine: str, **fields: Any) -> ShardSpec:
    base = ShardSpec(
        ShardId("s1"), ReplicaId("r1"), 1, "h", "qwen", engine, served_names=("qwen", "org/Qwen"),
        ports={"http": 20001},
    )  # fmt: skip
    return replace(base, **fields)


def line(one: ShardSpec) -> str:
    return " ".join(launch(one).argv)


def launch(one: ShardSpec) -> Launch:
    return engine_named(one.engine).launch(one, AROUND)


def test_llamacpp() -> None:
    one = launch(spec("llamacpp", context_length=2048, args=("--threads", "2"), credential="sekret"))
    assert " ".join(one.argv) == (
        "/venv/bin/python -P /a/llamacpp_main.py --model /w/files --host 10.0.0.5 --port 20001 "
        "--alias qwen --alias org/Qwen --context-length 2048 --threads 2"
    )
    assert one.env == {"LLMGW_ENGINE_CREDENTIAL": "sekret"}
    assert "sekret" not in " ".join(one.argv)


def test_llamacpp_lines_are_understood_by_its_runner() -> None:
    given = arguments(launch(spec("llamacpp", args=("--embeddings", "--parallel", "2"))).argv[3:])
    assert (given.model, given.port, given.alias) == ("/w/files", 20001, ["qwen", "org/Qwen"])
    assert (given.embeddings, given.parallel, given.context_length) == (True, 2, None)


def test_vllm_on_one_node() -> None:
    one = launch(
        spec("vllm", tensor_parallel=4, context_length=8192, args=("--enforce-eager",), credential="sekret")
    )
    assert " ".join(one.argv) == (
        "vllm serve /w/files --host 10.0.0.5 --port 20001 --served-model-name qwen org/Qwen "
        "--tensor-parallel-size 4 --pipeline-parallel-size 1 --max-model-len 8192 --enforce-eager"
    )
    assert one.env == {"VLLM_API_KEY": "sekret"}


MANY: dict[str, Any] = {
    "world_size": 2,
    "head_address": "10.0.0.1",
    "ports": {"http": 20001, "rendezvous": 20002, "internal": 20003},
}


def test_vllm_over_two_nodes_head_and_member() -> None:
    shared = "--served-model-name qwen org/Qwen --tensor-parallel-size 8 --pipeline-parallel-size 2"
    meet = "--master-addr 10.0.0.1 --master-port 20002"
    head = spec("vllm", tensor_parallel=8, pipeline_parallel=2, **MANY)
    assert line(head) == (
        f"vllm serve /w/files --host 10.0.0.5 --port 20001 {shared} --nnodes 2 --node-rank 0 {meet}"
    )
    member = replace(head, rank=1)
    assert line(member) == f"vllm serve /w/files {shared} --nnodes 2 --node-rank 1 {meet} --headless"
    assert launch(member).env == {"VLLM_PORT": "20003"}
    assert engine_named("vllm").ready_path(head) == "/health"
    assert engine_named("vllm").ready_path(member) is None


def test_vllm_with_data_parallelism_over_two_nodes() -> None:
    member = spec("vllm", tensor_parallel=2, data_parallel=8, rank=1, **MANY)
    assert line(member) == (
        "vllm serve /w/files --served-model-name qwen org/Qwen --tensor-parallel-size 2 "
        "--pipeline-parallel-size 1 --data-parallel-size 8 --data-parallel-size-local 4 "
        "--data-parallel-start-rank 4 --data-parallel-address 10.0.0.1 "
        "--data-parallel-rpc-port 20002 --headless"
    )
    alone = spec("vllm", data_parallel=2)
    assert "--data-parallel-size 2" in line(alone)
    assert "--data-parallel-address" not in line(alone)
    with pytest.raises(InvalidRequest, match="does not divide"):
        launch(replace(member, data_parallel=3))


def test_sglang_on_one_node_and_over_two() -> None:
    one = spec("sglang", tensor_parallel=2, context_length=4096, args=("--mem-fraction-static", "0.8"))
    assert line(one) == (
        "python3 -m sglang.launch_server --model-path /w/files --served-model-name qwen --tp-size 2 "
        "--pp-size 1 --dp-size 1 --host 10.0.0.5 --port 20001 --enable-metrics --context-length 4096 "
        "--mem-fraction-static 0.8"
    )
    member = spec("sglang", tensor_parallel=16, rank=1, **MANY)
    assert line(member).endswith(
        "--enable-metrics --nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:20002 --nccl-port 20003"
    )
    v6 = replace(member, head_address="fd00::1")
    assert "--dist-init-addr [fd00::1]:20002" in line(v6)
    assert not engine_named("sglang").supports_credential


def test_command_fills_every_placeholder() -> None:
    one = spec(
        "command", command=("serve", "--at={host}:{port}", "{port:grpc}", "{model_path}", "{served_name}"),
        ports={"http": 1, "grpc": 2}, args=("{rank}/{world_size}", '{"json": {}}', "{{port}}"),
    )  # fmt: skip
    assert launch(one).argv == (
        "serve", "--at=10.0.0.5:1", "2", "/w/files", "qwen", "0/1", '{"json": {}}', "{port}",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("{prot}", r"unknown placeholder \{prot\} \(did you mean 'port'\?\)"),
        ("{port:grcp}", r"asks for \{port:grcp\}, which this shard does not have"),
        ("{host:x}", r"unknown placeholder \{host:x\}"),
        ("{head_address}", r"asks for \{head_address\}"),
    ],
)
def test_command_refuses_what_it_cannot_fill(part: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        launch(spec("command", command=("serve", part)))


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (spec("llamacpp", ports={}), "needs a port 'http'"),
        (spec("llamacpp", world_size=2), "runs on one node"),
        (spec("vllm", world_size=2, rank=1), "without a head address"),
        (spec("sglang", world_size=2, head_address="h"), "needs a port 'rendezvous'"),
        (spec("command"), "needs a command"),
        (spec("vlm"), "did you mean 'vllm'"),
    ],
)
def test_specs_an_engine_cannot_serve(one: ShardSpec, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        launch(one)


@pytest.mark.parametrize("name", ["llamacpp", "vllm", "sglang"])
def test_without_weights_these_engines_refuse(name: str) -> None:
    with pytest.raises(InvalidRequest, match="needs weights"):
        engine_named(name).launch(spec(name), replace(AROUND, model_path=None))


def test_a_profile_may_name_its_own_ready_path() -> None:
    for engine in ENGINES.values():
        assert engine.ready_path(spec(engine.name)) == "/health"
        assert engine.ready_path(spec(engine.name, ready_path="/up")) == "/up"


VLLM_PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="qwen"} 2.0
vllm:num_requests_running{engine="1",model_name="a } b"} 1.0
vllm:num_requests_waiting{engine="0",model_name="qwen"} 4.0
vllm:num_requests_waiting_by_reason{reason="x"} 9.0
vllm:request_success_total{model_name="qwen"} 77.0
"""


def numbers(page: str, engine: str) -> Numbers:
    return parse_numbers(page, ENGINES[engine].gauge_series, ENGINES[engine].work_series)


def test_the_gauge_is_the_sum_over_ranks_and_queues() -> None:
    assert numbers(VLLM_PAGE, "vllm") == numbers(VLLM_PAGE, "command") == Numbers(7, None)
    page = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n"
    assert numbers(page, "llamacpp") == Numbers(1, None)


def test_work_is_the_sum_of_the_counters_that_are_there_and_unknown_without_one() -> None:
    work = """\
vllm:generation_tokens_total{engine="0",model_name="qwen"} 100.0
vllm:generation_tokens_total{engine="1",model_name="qwen"} 50.0
vllm:prompt_tokens_total{engine="0",model_name="qwen"} 7.0
vllm:prompt_tokens_by_source_total{engine="0"} 1000.0
vllm:iteration_tokens_total_bucket{le="1.0",model_name="qwen"} 900.0
vllm:iteration_tokens_total_count{model_name="qwen"} 3.0
"""
    assert numbers(VLLM_PAGE + work, "vllm") == Numbers(7, 160.0)
    sglang = 'sglang:num_running_reqs{m="q"} 2\nsglang:generation_tokens_total{m="q"} 7.557572e+06\n'
    assert numbers(sglang, "sglang") == Numbers(2, 7557572.0)


@pytest.mark.parametrize(
    "page",
    ["", VLLM_PAGE, "llamacpp:requests_processing\n", "llamacpp:requests_processing NaN\n",
     "llamacpp:requests_processing -1\n", "llamacpp:requests_processing x\n"],
)  # fmt: skip
def test_a_page_without_a_usable_gauge_is_unknown_never_zero(page: str) -> None:
    with pytest.raises(InvalidRequest):
        numbers(page, "llamacpp")


def test_probes_ask_for_one_token_under_the_first_served_name() -> None:
    bodies = [(probe.path, dict(probe.body)) for probe in probes(spec("vllm"))]
    assert [path for path, _ in bodies] == ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
    assert all(body["model"] == "qwen" for _, body in bodies)
    assert [body.get("max_tokens") for _, body in bodies] == [1, 1, None]
