"""Run by the Python of a Hub client's own environment, never by pytest: one act, told as JSON.

    python hub_client.py '{"act": "snapshot", "repo": "org/m"}'

Prints one line: {"result": …} or {"error": CLASS, "text": …, "causes": [CLASS, …]}.
"""

import hashlib
import json
import os
import sys
from typing import Any

from huggingface_hub import HfApi, HfFileSystem, hf_hub_download, snapshot_download

API = HfApi()


def folder_of(root: str) -> dict[str, str]:
    """Hashes of everything below, by path."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            if "/.cache/" not in path:
                with open(path, "rb") as file:
                    found[os.path.relpath(path, root)] = hashlib.sha256(file.read()).hexdigest()
    return found


def snapshot(repo: str, **more: Any) -> Any:
    where = snapshot_download(repo, **more)
    return {"commit": os.path.basename(where), "files": folder_of(where)}


def download(repo: str, path: str, **more: Any) -> Any:
    where = hf_hub_download(repo, path, **more)
    with open(where, "rb") as file:
        return {"path": where, "sha256": hashlib.sha256(file.read()).hexdigest()}


def walled(limit: int, **asked: Any) -> Any:
    """A download by a client whose own limit for plain HTTP is lowered."""
    from huggingface_hub import constants

    constants.MAX_HTTP_DOWNLOAD_SIZE = limit
    return download(**asked)


def info(repo: str, **more: Any) -> Any:
    said = API.model_info(repo, **more)
    return {
        "id": said.id,
        "sha": said.sha,
        "tags": said.tags,
        "gated": said.gated,
        "siblings": None
        if said.siblings is None
        else {s.rfilename: [s.size, s.blob_id, s.lfs and s.lfs["sha256"]] for s in said.siblings},
    }


def row(item: Any) -> Any:
    last = getattr(item, "last_commit", None)
    said = [item.path, getattr(item, "size", None), item.lfs.sha256 if getattr(item, "lfs", None) else None]
    return said if last is None else [*said, last.oid]


def tree(repo: str, path: str | None = None, **more: Any) -> Any:
    return [row(item) for item in API.list_repo_tree(repo, path, **more)]


def paths(repo: str, names: list[str], **more: Any) -> Any:
    return [row(item) for item in API.get_paths_info(repo, names, **more)]


def refs(repo: str, **more: Any) -> Any:
    said = API.list_repo_refs(repo, **more)
    return {
        kind: {ref.name: [ref.ref, ref.target_commit] for ref in getattr(said, kind) or []}
        for kind in ("branches", "tags", "converts", "pull_requests")
    }


def exists(repo: str, names: list[str], revisions: list[str]) -> Any:
    return {
        "repo": API.repo_exists(repo),
        "files": [API.file_exists(repo, name) for name in names],
        "revisions": [API.revision_exists(repo, name) for name in revisions],
    }


def filesystem(repo: str, path: str, glob: str, offset: int, count: int) -> Any:
    fs = HfFileSystem()
    with fs.open(f"{repo}/{path}", "rb") as file:
        file.seek(offset)
        middle = file.read(count).hex()
        file.seek(-5, 2)
        end = file.read().hex()
    walked = {
        folder.removeprefix(repo).strip("/"): [sorted(inner), sorted(names)]
        for folder, inner, names in fs.walk(repo)
    }
    return {
        "middle": middle,
        "end": end,
        "glob": sorted(fs.glob(f"{repo}/{glob}")),
        "find": sorted(fs.find(repo)),
        "walk": walked,
        "size": fs.info(f"{repo}/{path}")["size"],
        "missing": fs.exists(f"{repo}/none.txt"),
        "sha256": hashlib.sha256(fs.cat_file(f"{repo}/{path}")).hexdigest(),
    }


def tensors(repo: str) -> Any:
    said = API.get_safetensors_metadata(repo)
    return {name: sorted(meta.tensors) for name, meta in said.files_metadata.items()}


def transformers(repo: str) -> Any:
    from transformers import AutoConfig, AutoTokenizer

    config, tokenizer = AutoConfig.from_pretrained(repo), AutoTokenizer.from_pretrained(repo)
    return {"type": config.model_type, "ids": tokenizer("hello world")["input_ids"]}


ACTS = {
    "snapshot": snapshot,
    "download": download,
    "walled": walled,
    "info": info,
    "tree": tree,
    "paths": paths,
    "refs": refs,
    "exists": exists,
    "filesystem": filesystem,
    "tensors": tensors,
    "transformers": transformers,
    "files": lambda repo, **more: sorted(API.list_repo_files(repo, **more)),
    "models": lambda **more: [model.id for model in API.list_models(**more)],
    "commits": lambda repo, **more: [commit.commit_id for commit in API.list_repo_commits(repo, **more)],
    "whoami": lambda **more: API.whoami(**more)["name"],
    "several": lambda acts: [told(dict(act)) for act in acts],
}


def told(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": ACTS[asked.pop("act")](**asked)}
    except Exception as e:
        causes, cause = [], e.__cause__ or e.__context__
        while cause is not None and len(causes) < 10:
            causes.append([type(cause).__name__, str(cause)])
            cause = cause.__cause__ or cause.__context__
        return {"error": type(e).__name__, "text": str(e), "causes": causes}


if __name__ == "__main__":
    print("\n" + json.dumps(told(json.loads(sys.argv[1]))))
