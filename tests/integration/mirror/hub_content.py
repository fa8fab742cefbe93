"""What a scripted registry holds: repositories, commits, files, and their rows as the Hub words them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: What the Hub puts into LFS by itself, whatever the size.
LFS_SUFFIXES = (
    ".safetensors",
    ".gguf",
    ".bin",
    ".pt",
    ".pth",
    ".onnx",
    ".h5",
    ".msgpack",
    ".ckpt",
    ".npz",
    ".tflite",
)
MODIFIED = "2026-01-02T03:04:05.000Z"


@dataclass(frozen=True)
class HubFile:
    """One file at one commit. `row` is laid over its generated listing row, to make it odd."""

    path: str
    content: bytes
    lfs: bool
    row: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def pointer(self) -> bytes:
        """What git holds in place of an LFS file."""
        lines = ("version lfs/spec/v1", f"oid sha256:{self.sha256}", f"size {len(self.content)}")
        return "".join(f"{line}\n" for line in lines).encode()

    @property
    def git_id(self) -> str:
        """Of the pointer, for LFS: the trap in the listing."""
        return git_id_of(self.pointer if self.lfs else self.content)

    @property
    def etag(self) -> str:
        return f'"{self.sha256 if self.lfs else self.git_id}"'

    def sibling(self, *, blobs: bool) -> dict[str, Any]:
        """A row of `siblings`: the sha256 is called sha256."""
        row: dict[str, Any] = {"rfilename": self.path}
        if blobs:
            row |= {"size": len(self.content), "blobId": self.git_id}
            if self.lfs:
                row["lfs"] = {
                    "sha256": self.sha256,
                    "size": len(self.content),
                    "pointerSize": len(self.pointer),
                }
        return row | dict(self.row)

    def tree_row(self) -> dict[str, Any]:
        """A row of `tree`: the sha256 is called oid, below the row's own oid."""
        row: dict[str, Any] = {
            "type": "file",
            "oid": self.git_id,
            "size": len(self.content),
            "path": self.path,
        }
        if self.lfs:
            row["lfs"] = {"oid": self.sha256, "size": len(self.content), "pointerSize": len(self.pointer)}
            row["xetHash"] = hashlib.sha256(b"xet" + self.content).hexdigest()
        return row | dict(self.row)


def git_id_of(content: bytes) -> str:
    """What `git hash-object` says."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class HubRepo:
    """`fields` are laid over what info and search rows say: gated, likes, odd types, unknown keys."""

    id: str
    fields: dict[str, Any] = field(default_factory=dict)
    #: By commit, oldest first.
    commits: dict[str, dict[str, HubFile]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    #: Listed as they are, after the real files: hostile names, things that are no rows.
    extra_rows: list[Any] = field(default_factory=list)
    #: Tokens that may read it; None: everybody.
    granted: set[str] | None = None
    private: bool = False

    def commit(
        self, files: Mapping[str, bytes], *, branch: str = "main", lfs: Sequence[str] | None = None,
        rows: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> str:  # fmt: skip
        """A new commit with exactly these files at the head of the branch; returns its id.

        `lfs` names the files in LFS; by their suffixes unless given."""
        made = {
            path: HubFile(
                path, content, path in lfs if lfs is not None else path.endswith(LFS_SUFFIXES),
                (rows or {}).get(path, {}),
            )
            for path, content in files.items()
        }  # fmt: skip
        seed = f"{self.id}\0{branch}\0{len(self.commits)}"
        commit = hashlib.sha1(seed.encode()).hexdigest()
        self.commits[commit] = made
        self.branches[branch] = commit
        return commit

    def resolve(self, revision: str) -> str | None:
        """A branch's or commit's commit."""
        return self.branches.get(revision) or (revision if revision in self.commits else None)

    def search_row(self, *, full: bool) -> dict[str, Any]:
        row: dict[str, Any] = {
            "_id": hashlib.md5(self.id.encode()).hexdigest()[:24], "id": self.id, "modelId": self.id,
            "likes": 3, "downloads": 42, "private": self.private, "tags": ["transformers", "safetensors"],
            "pipeline_tag": "text-generation", "library_name": "transformers", "createdAt": MODIFIED,
        }  # fmt: skip
        if full:
            row |= {"author": self.id.split("/")[0], "lastModified": MODIFIED, "gated": False}
            row["sha"] = self.resolve("main")
        return row | self.fields

    def info(self, commit: str, *, blobs: bool) -> dict[str, Any]:
        files = self.commits[commit].values()
        row = {
            **self.search_row(full=True),
            "sha": commit,
            "disabled": False,
            "cardData": {"license": "apache-2.0"},
        }
        row["siblings"] = [file.sibling(blobs=blobs) for file in files] + self.extra_rows
        row["usedStorage"] = sum(len(file.content) for file in files)
        return row | self.fields
