"""Between `llmgw.v1` messages and what is known of the registry; see wire.py for the rest."""

from collections.abc import Iterable

from llmgw.v1 import mirror_pb2 as pb
from llmgw_kit.errors import InvalidRequest
from llmgw_mirror import wire
from llmgw_mirror.adapters.registry_http import RegistryState
from llmgw_mirror.core.listed_files import ListedFile
from llmgw_mirror.core.warnings import GpuClass, Warning
from llmgw_mirror.fetching_repository import Order, Ordered
from llmgw_mirror.finding import Found, Look


def fleet_from(messages: Iterable[pb.FleetGpuClass]) -> tuple[GpuClass, ...]:
    """Raises InvalidRequest for a class without memory: it would fit nothing, and hide what does."""
    classes = tuple(
        GpuClass(one.name, one.memory_bytes, one.devices_per_node, one.nodes_per_fabric) for one in messages
    )
    for one in classes:
        if one.memory_bytes <= 0:
            raise InvalidRequest(
                f"GPU class {one.name!r} has no memory_bytes",
                next_steps=["say how much memory one of its GPUs has"],
            )
    return classes


def order_from(message: pb.FetchRepositoryRequest) -> Order:
    """Empty strings are what careless clients send for "none"."""
    return Order(
        repository=message.repository,
        revision=message.revision or None,
        groups=tuple(message.groups),
        paths=tuple(message.paths),
        model=message.model or None,
        version=message.version or None,
        accepted=frozenset(message.accepted),
        fleet=fleet_from(message.fleet),
        asked_by=message.asked_by or None,
    )


def state_to(state: RegistryState | None) -> pb.GetRegistryResponse:
    if state is None:
        return pb.GetRegistryResponse()
    return pb.GetRegistryResponse(
        base_url=state.base_url, has_token=state.has_token, trouble=state.trouble,
        trouble_since_unix_s=state.trouble_since, tried_again_unix_s=state.tried_again_at,
    )  # fmt: skip


def found_to(found: Found) -> pb.FoundRepository:
    row = found.row
    return pb.FoundRepository(
        id=row.id, odd=row.odd, gated=row.gated, private=row.private, downloads=row.downloads,
        likes=row.likes, modified_unix_s=row.modified, pipeline_tag=row.pipeline_tag, library=row.library,
        tags=row.tags, versions_here=found.versions_here,
    )  # fmt: skip


def warning_to(warning: Warning) -> pb.Warning:
    return pb.Warning(
        code=warning.code, text=warning.text, next_steps=warning.next_steps, blocks=warning.blocks
    )


def _file_to(file: ListedFile) -> pb.ListedFile:
    return pb.ListedFile(path=file.path, size_bytes=file.size_bytes, sha256=file.sha256, git_id=file.git_id)


def look_to(look: Look) -> pb.ListFilesResponse:
    listing = look.listing
    return pb.ListFilesResponse(
        repository=wire.repository_to(look.repository),
        gated=listing.gated,
        groups=[
            pb.FileGroup(
                name=group.name, format=group.format, quantisation=group.quantisation,
                files=[_file_to(file) for file in group.files], total_bytes=wire.size_to(group.total_bytes),
                preselected=group.preselected,
                warnings=[warning_to(one) for one in look.about[group.name]],
                version_here=look.version_here.get(group.name),
            )
            for group in look.groups
        ],
        companions=[_file_to(file) for file in look.companions],
        odd_files=[pb.OddFile(path=odd.path, why=odd.why) for odd in listing.odd],
        warnings=[warning_to(one) for one in look.warnings],
        license=listing.license,
        parameters=listing.parameters,
        disk_free_bytes=look.space.free_bytes,
    )  # fmt: skip


def ordered_to(ordered: Ordered) -> pb.FetchRepositoryResponse:
    return pb.FetchRepositoryResponse(
        version=wire.version_to(ordered.version),
        warnings=[warning_to(one) for one in ordered.warnings],
        bytes_to_fetch=wire.size_to(ordered.bytes_to_fetch),
    )
