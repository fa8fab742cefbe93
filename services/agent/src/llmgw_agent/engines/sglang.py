"""SGLang's OpenAI server: `python -m sglang.launch_server`.

Flags: "Server Arguments" of its documentation. It takes one served name.
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


class Sglang:
    """Its --api-key exists only on the command line, where every user of the machine can read it."""

    name = "sglang"
    supports_credential = False
    gauge_series = ("sglang:num_running_reqs", "sglang:num_queue_reqs")
    gauge_promised = True
    #: "Production Metrics" of its documentation. The last is counted with each of its log lines.
    work_series = (
        "sglang:generation_tokens_total", "sglang:prompt_tokens_total", "sglang:realtime_tokens_total",
    )  # fmt: skip
    version_asks = (VersionAsk("/server_info", "version"), VersionAsk("/get_server_info", "version"))

    def launch(self, spec: ShardSpec, around: Surroundings) -> Launch:
        """`python -m sglang.launch_server ...` for this rank."""
        argv = [
            around.sglang_python, "-m", "sglang.launch_server",
            "--model-path", required_model(spec, around),
            "--served-model-name", spec.served_name,
            "--tp-size", str(spec.tensor_parallel), "--pp-size", str(spec.pipeline_parallel),
            "--dp-size", str(spec.data_parallel),
            "--host", around.listen_host, "--port", str(required_port(spec, "http")),
            "--enable-metrics",
        ]  # fmt: skip
        if spec.context_length is not None:
            argv += ["--context-length", str(spec.context_length)]
        if spec.world_size > 1:
            argv += ["--nnodes", str(spec.world_size), "--node-rank", str(spec.rank)]
            argv += ["--dist-init-addr", _joined(required_head(spec), required_port(spec, "rendezvous"))]
        if "internal" in spec.ports:
            argv += ["--nccl-port", str(spec.ports["internal"])]
        return Launch((*argv, *spec.args))

    def ready_path(self, spec: ShardSpec) -> str | None:
        """200 once the scheduler runs; ranks above 0 have no server of their own."""
        return None if spec.rank > 0 else spec.ready_path or "/health"


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
