"""Serve one GGUF file with llama.cpp: the whole of an engine process.

Run by path, as `python -P llamacpp_main.py --model ...`; imports nothing of ours, so that it also starts
under a Python in which only xllamacpp is installed.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

#: More threads than this slow a small model down on one machine shared with others.
MOST_THREADS = 8


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The flags; exits with 2 and a usage line on a wrong one."""
    parser = argparse.ArgumentParser(prog="llamacpp_main", description=__doc__)
    parser.add_argument("--model", required=True, help="the .gguf file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--alias", action="append", required=True, help="a name it answers to; repeatable")
    parser.add_argument("--context-length", type=int, help="tokens of one request; default: the model's own")
    parser.add_argument("--parallel", type=int, default=4, help="requests at a time (default 4)")
    parser.add_argument(
        "--threads", type=int, help=f"CPU threads; default: all allowed, at most {MOST_THREADS}"
    )
    parser.add_argument("--gpu-layers", type=int, help="layers on the GPU; default: as many as fit")
    parser.add_argument("--embeddings", action="store_true", help="answer /v1/embeddings too")
    parser.add_argument("--pooling", choices=("mean", "cls", "last"), default="mean", help="of embeddings")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT."""
    given = arguments(argv)
    # Blocked before the server starts its threads, which inherit the mask: otherwise a signal lands on
    # one of them and the default action ends the process with a signal instead of a status.
    stops = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    if not os.path.isfile(given.model):
        print(f"error: no such file: {given.model}", file=sys.stderr)
        return 1
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.hostnames, params.port = [given.host], given.port
    params.reuse_port = False
    params.model_alias = set(given.alias)
    params.n_parallel = given.parallel
    # The slots share one context.
    params.n_ctx = (given.context_length or 0) * given.parallel
    threads = given.threads or min(len(os.sched_getaffinity(0)), MOST_THREADS)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    if given.gpu_layers is not None:
        params.n_gpu_layers = given.gpu_layers
    params.endpoint_metrics, params.warmup, params.ui = True, False, False
    # Its cache of old prompts would take 8 GiB of the host unasked.
    params.cache_ram_mib = 0
    if given.embeddings:
        params.embedding = True
        params.pooling_type = getattr(
            xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{given.pooling.upper()}"
        )
    credential = os.environ.pop("LLMGW_ENGINE_CREDENTIAL", None)
    if credential:
        params.api_keys = [credential]
    server = xllamacpp.Server(params)
    print(f"listening on {server.listening_address}", flush=True)
    signal.sigwait(stops)
    sys.stdout.flush()
    sys.stderr.flush()
    # Who stops us has drained us; joining the server's threads would only wait for clients that left.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
