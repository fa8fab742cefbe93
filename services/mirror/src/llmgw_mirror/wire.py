"""Between `llmgw.v1` messages and the core's types, in one place."""

from collections.abc import Iterable

from llmgw.v1 import common_pb2, mirror_pb2
from llmgw_kit.text import storable
from llmgw_mirror.core.origins import shown
from llmgw_mirror.core.versions import FileView, Repository, Source, VersionView, WeightsState
from llmgw_mirror.downloads import Download

STATES = {
    WeightsState.FAILED: mirror_pb2.WEIGHTS_STATE_FAILED,
    WeightsState.ABSENT: mirror_pb2.WEIGHTS_STATE_ABSENT,
    WeightsState.FETCHING: mirror_pb2.WEIGHTS_STATE_FETCHING,
    WeightsState.VERIFYING: mirror_pb2.WEIGHTS_STATE_VERIFYING,
    WeightsState.PRESENT: mirror_pb2.WEIGHTS_STATE_PRESENT,
}

#: What uint64 carries.
_MOST = 2**64 - 1


def size_to(size: int | None) -> int | None:
    """None for what no message carries: versions stored before sizes were bounded are listed too, and one of
    them must not cost the others."""
    return size if size is not None and 0 <= size <= _MOST else None


def source_from(message: common_pb2.WeightsSource) -> Source:
    """Unchecked; core.versions.wish checks."""
    return Source(
        path=message.path,
        url=message.url,
        # An empty string is what a careless client sends for "none".
        sha256=message.sha256 if message.HasField("sha256") and message.sha256 else None,
        size_bytes=message.size_bytes if message.HasField("size_bytes") else None,
        git_id=message.git_id if message.HasField("git_id") and message.git_id else None,
        companion=message.companion,
    )


def repository_from(message: mirror_pb2.Repository) -> Repository:
    """Unchecked; core.versions.wish checks."""
    return Repository(message.id, message.commit, message.revision if message.HasField("revision") else None)


def repository_to(repository: Repository) -> mirror_pb2.Repository:
    revision = repository.revision
    return mirror_pb2.Repository(
        id=storable(repository.id),
        commit=storable(repository.commit),
        revision=None if revision is None else storable(revision),
    )


def sources_from(messages: Iterable[common_pb2.WeightsSource]) -> list[Source]:
    return [source_from(message) for message in messages]


def file_to(view: FileView) -> mirror_pb2.WeightsFile:
    """Progress with FETCHING only, the hash with PRESENT only, as the contract says."""
    message = mirror_pb2.WeightsFile(
        path=view.source.path,
        state=STATES[view.state],
        received_bytes=min(view.received_bytes, _MOST),
        source_url=storable(shown(view.source.url)),
        companion=view.source.companion,
        cancelled=view.cancelled,
        proof=None if view.proof is None else view.proof.value,
    )
    if (size := size_to(view.size_bytes)) is not None:
        message.size_bytes = size
    if view.state is WeightsState.PRESENT and view.sha256 is not None:
        message.sha256 = view.sha256
    if view.state is WeightsState.FETCHING:
        if view.rate_bytes_s is not None:
            message.rate_bytes_s = view.rate_bytes_s
        if view.eta_s is not None:
            message.eta_s = view.eta_s
    if view.error is not None:
        message.error = storable(view.error)
    return message


def version_to(view: VersionView) -> mirror_pb2.WeightsVersion:
    return mirror_pb2.WeightsVersion(
        model=view.model,
        version=view.version,
        state=STATES[view.state],
        files=[file_to(file) for file in view.files],
        repository=None if view.repository is None else repository_to(view.repository),
        created_at_unix_s=view.created_at,
        received_bytes=min(view.received_bytes, _MOST),
        total_bytes=size_to(view.total_bytes),
        rate_bytes_s=view.rate_bytes_s,
        eta_s=view.eta_s,
        verified_at_unix_s=view.verified_at,
    )


def download_to(download: Download) -> mirror_pb2.WeightsVersion:
    """Sums of the whole version, files as told."""
    message = version_to(download.whole)
    del message.files[:]
    message.files.extend(file_to(file) for file in download.files)
    return message
