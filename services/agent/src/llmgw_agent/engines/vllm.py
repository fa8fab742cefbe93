"""vLLM's OpenAI server: `vllm serve`.

Flags: "vLLM CLI reference: serve"; several nodes: "Parallelism and scaling", the multiprocessing way
(--nnodes, --node-rank, --master-addr, --headless); data parallelism over nodes: "Data parallel
deployment" (--data-parallel-size-local, --data-parallel-address, --data-parallel-rpc-port).
"""

from llmgw_agent.core.spec import ShardSpec
from llmgw_agent.engines.base import (
    Launch,
    Surroundings,
    VersionAsk,
    required_head,
    required_model,
    required_port,
)
from llmgw_kit.errors import InvalidRequest


class Vllm:
    """Ranks above 0 are headless: they have no HTTP server, and are up when their process is."""

    name = "vllm"
    supports_credential = True
    gauge_series = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    gauge_promised = True
    #: "Production Metrics" of its documentation. The last counts the engine's steps: prompt tokens are
    #: counted when a prompt is done, and a long one takes many steps.
    work_series = (
        "vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:iteration_tokens_total_count",
    )  # fmt: skip
    version_asks = (VersionAsk("/version", "version"),)

    def launch(self, spec: ShardSpec, around: Surroundings) -> Launch:
        """`vllm serve ...` for this rank."""
        argv = [around.vllm_program, "serve", required_model(spec, around)]
        if spec.rank == 0:
            argv += ["--host", around.listen_host, "--port", str(required_port(spec, "http"))]
        argv += ["--served-model-name", *(spec.served_names or (spec.model,))]
        argv += ["--tensor-parallel-size", str(spec.tensor_parallel)]
        argv += ["--pipeline-parallel-size", str(spec.pipeline_parallel)]
        argv += self._data_parallel(spec)
        if spec.context_length is not None:
            argv += ["--max-model-len", str(spec.context_length)]
        if spec.world_size > 1 and spec.data_parallel == 1:
            argv += ["--nnodes", str(spec.world_size), "--node-rank", str(spec.rank)]
            argv += [
                "--master-addr",
                required_head(spec),
                "--master-port",
                str(required_port(spec, "rendezvous")),
            ]
        if spec.rank > 0:
            argv.append("--headless")
        env = {}
        if spec.credential is not None:
            env["VLLM_API_KEY"] = spec.credential
        # Base of the ports it picks by itself; unset it draws from the kernel's ephemeral range, where
        # any client connection of this machine may sit already.
        if "internal" in spec.ports:
            env["VLLM_PORT"] = str(spec.ports["internal"])
        return Launch((*argv, *spec.args), env)

    def _data_parallel(self, spec: ShardSpec) -> list[str]:
        if spec.data_parallel == 1:
            return []
        argv = ["--data-parallel-size", str(spec.data_parallel)]
        if spec.world_size == 1:
            return argv
        if spec.data_parallel % spec.world_size:
            raise InvalidRequest(
                f"shard {spec.shard_id}: data parallelism {spec.data_parallel} does not divide over "
                f"{spec.world_size} nodes",
                next_steps=["one copy must lie on one node when data parallelism spans nodes"],
            )
        local = spec.data_parallel // spec.world_size
        argv += ["--data-parallel-size-local", str(local)]
        if spec.rank > 0:
            argv += ["--data-parallel-start-rank", str(local * spec.rank)]
        argv += ["--data-parallel-address", required_head(spec)]
        return [*argv, "--data-parallel-rpc-port", str(required_port(spec, "rendezvous"))]

    def ready_path(self, spec: ShardSpec) -> str | None:
        """200 once the engine core answers."""
        return None if spec.rank > 0 else spec.ready_path or "/health"
