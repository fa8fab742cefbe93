"""Messages about what is here, from core types; beside wire.py, which has those about files."""

from llmgw.v1 import mirror_pb2
from llmgw_mirror.adapters.removals import Removal
from llmgw_mirror.core.history import Entry
from llmgw_mirror.keeping import KeptVersion
from llmgw_mirror.verifying import Verified
from llmgw_mirror.wire import version_to
from llmgw_mirror.wire_registry import warning_to


def described_to(kept: KeptVersion) -> mirror_pb2.WeightsVersion:
    message = version_to(kept.view)
    message.readers.extend(kept.readers)
    message.warnings.extend(warning_to(one) for one in kept.warnings)
    return message


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
