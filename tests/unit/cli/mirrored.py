"""What a mirror answers, as messages: versions with files in every state."""

from typing import Any

from llmgw.v1 import mirror_pb2 as pb

NOW = 1_796_049_127.0  # 2026-11-30T14:32:07Z
GB = 10**9
COMMIT = "40c0698" + "0" * 33


def file(path: str, state: str, size: int | None = 4 * GB, **changes: Any) -> pb.WeightsFile:
    plain: dict[str, Any] = {"path": path, "state": pb.WeightsState.Value(f"WEIGHTS_STATE_{state.upper()}")}
    if size is not None:
        plain["size_bytes"] = size
    if state in ("present", "verifying", "failed"):
        plain["received_bytes"] = size or 0
    if state == "present":
        plain |= {"sha256": "ab" * 32, "proof": "sha256"}
    return pb.WeightsFile(**(plain | changes))


def version(model: str, *files: pb.WeightsFile, name: str = COMMIT, **changes: Any) -> pb.WeightsVersion:
    sizes = [one.size_bytes if one.HasField("size_bytes") else None for one in files]
    plain: dict[str, Any] = {
        "model": model, "version": name, "files": files,
        "state": min((one.state for one in files), default=pb.WEIGHTS_STATE_ABSENT),
        "received_bytes": sum(one.received_bytes for one in files),
    }  # fmt: skip
    if None not in sizes:
        plain["total_bytes"] = sum(size for size in sizes if size is not None)
    return pb.WeightsVersion(**(plain | changes))


def shards(count: int, state: str = "present", size: int = 4 * GB) -> list[pb.WeightsFile]:
    return [file(f"model-{n:05}-of-{count:05}.safetensors", state, size) for n in range(1, count + 1)]


def mistral() -> pb.WeightsVersion:
    """One of ten has failed."""
    files = shards(10, size=4_790_000_000)
    files[6] = file(
        "model-00007-of-00010.safetensors", "failed", 4_980_000_000,
        error="checksum differs: got 91f0…, published 44ab…; removed",
    )  # fmt: skip
    return version("mistral-small", *files, name="5c2e1d0" + "f" * 33)


def qwen() -> pb.WeightsVersion:
    """On its way."""
    files = shards(4)
    files[1] = file("model-00002-of-00004.safetensors", "verifying", eta_s=2.0)
    files[2] = file(
        "model-00003-of-00004.safetensors", "fetching", received_bytes=1_340_000_000, rate_bytes_s=112e6
    )
    files[3] = file("model-00004-of-00004.safetensors", "present", 2_800_000_000)
    return version("qwen3-14b", *files, file("tokenizer.json", "present", 11_000_000), eta_s=24.0)


def registry(**changes: Any) -> pb.GetRegistryResponse:
    return pb.GetRegistryResponse(base_url="https://hub.test", has_token=True, **changes)


def registry_away() -> pb.GetRegistryResponse:
    return registry(
        trouble="HTTP 503 after 10.0 s", trouble_since_unix_s=NOW - 17, tried_again_unix_s=NOW + 13
    )


def found() -> pb.SearchResponse:
    return pb.SearchResponse(
        more=True,
        repositories=[
            pb.FoundRepository(
                id="Qwen/Qwen3-14B", downloads=1_234_567, likes=345, modified_unix_s=NOW - 86_400 * 30,
                versions_here=[COMMIT],
            ),
            pb.FoundRepository(id="someone/odd", odd="its id is a number"),
            pb.FoundRepository(
                id="a-lab/" + "a-model-with-a-very-long-name-" * 3, downloads=12, gated="manual", private=True
            ),
        ],
    )  # fmt: skip


def listed(path: str, size: int | None = 4 * GB, *, sha256: bool = True, git: bool = True) -> pb.ListedFile:
    return pb.ListedFile(
        path=path, size_bytes=size, sha256="cd" * 32 if sha256 else None, git_id="ef" * 20 if git else None
    )


def files() -> pb.ListFilesResponse:
    safe = [listed(f"model-{n:05}-of-00002.safetensors") for n in (1, 2)]
    return pb.ListFilesResponse(
        repository=pb.Repository(id="Qwen/Qwen3-14B", commit=COMMIT, revision="main"),
        gated="auto",
        license="apache-2.0",
        parameters=14_800_000_000,
        disk_free_bytes=7_200 * GB,
        groups=[
            pb.FileGroup(name="safetensors", format="safetensors", files=safe, total_bytes=8 * GB,
                         preselected=True, version_here=COMMIT),
            pb.FileGroup(
                name="pytorch", format="pytorch", files=[listed("pytorch_model.bin", None, sha256=False)],
                warnings=[pb.Warning(
                    code="pickle", text="the files are pickles, which may run code when they are loaded",
                    next_steps=["take safetensors instead: the same repository has it"],
                )],
            ),
        ],
        companions=[listed("config.json", 728, sha256=False), listed("odd.json", 9, sha256=False, git=False)],
        odd_files=[pb.OddFile(path="../../x", why="its part '..' leads out of the version")],
        warnings=[pb.Warning(
            code="stale_index", blocks=True, next_steps=["take another revision or another group"],
            text="model.safetensors.index.json names 30 shards, 15 of them not in the repository: loaders "
                 "that trust the index leave weights out without a word",
        )],
    )  # fmt: skip


def versions() -> pb.ListVersionsResponse:
    whole = version(
        "Qwen/Qwen3-8B", *shards(5), verified_at_unix_s=NOW - 86_400, readers=["h100-01", "h100-02"]
    )
    stale = pb.Warning(code="stale_index", text="its index names 30 shards, 15 are here", next_steps=["look"])
    unproved = version(
        "local/tiny", file("tiny.gguf", "present", 93_000_000, proof="none"), name="2025-08", warnings=[stale]
    )
    return pb.ListVersionsResponse(
        versions=[whole, mistral(), qwen(), unproved], disk_total_bytes=14 * 10**12,
        disk_free_bytes=7_200 * GB,
    )  # fmt: skip
