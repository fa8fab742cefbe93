"""llama.cpp's own OpenAI server, run by our small runner in a process of its own."""

from llmgw_agent.core.spec import ShardSpec
from llmgw_agent.engines.base import Launch, Surroundings, VersionAsk, required_model, required_port
from llmgw_kit.errors import InvalidRequest

#: The credential goes by environment: a command line is readable by every user of the machine.
CREDENTIAL_VARIABLE = "LLMGW_ENGINE_CREDENTIAL"


class LlamaCpp:
    """`spec.args` are flags of the runner: --parallel, --threads, --embeddings, ... (see its --help)."""

    name = "llamacpp"
    supports_credential = True
    gauge_series = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
    gauge_promised = True
    #: Its counters of tokens move when a request ends; that of decode calls moves within one.
    work_series = (
        "llamacpp:n_decode_total", "llamacpp:tokens_predicted_total", "llamacpp:prompt_tokens_total",
    )  # fmt: skip
    version_asks = (VersionAsk("/props", "build_info"),)

    def launch(self, spec: ShardSpec, around: Surroundings) -> Launch:
        """The runner's command line."""
        if spec.world_size > 1:
            raise InvalidRequest(
                f"engine llamacpp runs on one node; shard {spec.shard_id} is of {spec.world_size}"
            )
        argv = [
            # -P: the runner's own folder must not decide what it imports; our engines' files lie there.
            around.llamacpp_python, "-P", around.llamacpp_runner,
            "--model", required_model(spec, around),
            "--host", around.listen_host, "--port", str(required_port(spec, "http")),
        ]  # fmt: skip
        for name in spec.served_names or (spec.model,):
            argv += ["--alias", name]
        if spec.context_length is not None:
            argv += ["--context-length", str(spec.context_length)]
        env = {CREDENTIAL_VARIABLE: spec.credential} if spec.credential is not None else {}
        return Launch((*argv, *spec.args), env)

    def ready_path(self, spec: ShardSpec) -> str | None:
        """503 while it loads, 200 after; open also when a credential is required."""
        return spec.ready_path or "/health"
