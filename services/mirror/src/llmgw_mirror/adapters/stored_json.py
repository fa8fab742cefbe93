"""What the store's small files say, of this release and of those before it."""

from typing import Any

from llmgw_mirror.core.versions import Proof, Receipt, Repository, Source, Wish


def wish_of(value: dict[str, Any]) -> Wish:
    """Raises KeyError, TypeError for what no release wrote."""
    # What was added after the first release is read with its default: stores outlive releases.
    files = tuple(
        Source(f["path"], f["url"], f["sha256"], f["size_bytes"], f.get("git_id"), f.get("companion", False))
        for f in value["files"]
    )
    place = value.get("repository")
    repository = None if place is None else Repository(place["id"], place["commit"], place["revision"])
    return Wish(value["model"], value["version"], value["created_at"], files, repository)


def receipt_of(value: dict[str, Any]) -> Receipt:
    """Raises KeyError, TypeError, ValueError for what no release wrote."""
    if "proof" in value:
        proof = Proof(value["proof"])
    else:
        proof = Proof.NONE if value["as_received"] else Proof.SHA256
    return Receipt(value["sha256"], value["size_bytes"], proof, value["at"])
