"""Messages about what is here, from core types; beside wire.py, which has those about files."""

from llmgw.v1 import mirror_pb2
from llmgw_mirror.adapters.removals import Removal
from llmgw_mirror.core.history import Entry
from llmgw_mirror.keeping import Described
from llmgw_mirror.verifying import Verified
from llmgw_mirror.wire import version_to


def described_to(described: Described) -> mirror_pb2.WeightsVersion:
    message = version_to(described.view)
    message.readers.extend(described.readers)
    message.warnings.extend(_stale_index(path, missing) for path, missing in described.lacking)
    return message


def _stale_index(path: str, missing: tuple[str, ...]) -> mirror_pb2.Warning:
    some = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return mirror_pb2.Warning(
        code="stale_index",
        text=f"{path} names files that this version does not have: {some}; either they are missing here, or "
        "the index is older than the files",
        next_steps=["fetch a version that has them too, or see whether the engine loads it as it is"],
    )


def verified_to(word: Verified) -> mirror_pb2.VerifyVersionResponse:
    return mirror_pb2.VerifyVersionResponse(
        path=word.path,
        read_bytes=word.read_bytes,
        total_bytes=word.total_bytes,
        done=word.done,
        trouble=word.trouble,
    )


def removal_to(removal: Removal) -> mirror_pb2.RemovedVersion:
    return mirror_pb2.RemovedVersion(
        model=removal.model,
        version=removal.version,
        removed_at_unix_s=removal.at,
        restorable_until_unix_s=removal.until,
        bytes=removal.bytes,
        asked_by=removal.asked_by,
    )


def entry_to(entry: Entry) -> mirror_pb2.HistoryEntry:
    return mirror_pb2.HistoryEntry(
        at_unix_s=entry.at,
        kind=entry.kind.value,
        model=entry.model,
        version=entry.version,
        path=entry.path,
        asked_by=entry.asked_by,
        bytes=entry.bytes,
        text=entry.text,
    )
