"""What each service's configuration file says in the lab. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from llmgw_lab.layout import HOST, Layout, Node

#: A laptop's disk is smaller than a node's; checks.py has made sure of room before the start.
DISK_RESERVE_BYTES = 128 << 20

#: The lab is for looking at: what a view says of requests is at most so old. A fleet has 5 s.
ACTIVITY_TICK_S = 1.0


@dataclass(frozen=True)
class Configuration:
    """One service's configuration: its file, and what comes by environment."""

    #: Name of the file, without its ending; two services may share one.
    file: str
    settings: dict[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)


def controller(
    layout: Layout, part: str, *, dsn: str, redis_url: str, models: Sequence[dict[str, Any]]
) -> Configuration:
    """One of the two controllers. One file for both: what differs between them is no matter of the catalog,
    and controllers whose files differ are trouble in `llmgwctl status`."""
    settings = {
        "cluster": "lab",
        "dsn": dsn,
        "redis_url": redis_url,
        "mirror": layout.address("mirror"),
        "mirror_url": f"http://{layout.address('mirror-http')}",
        "models": list(models),
        "activity_tick_s": ACTIVITY_TICK_S,
    }
    environment = {
        "LLMGW_CONTROLLER_NAME": part,
        "LLMGW_CONTROLLER_LISTEN": layout.address(part),
        "LLMGW_CONTROLLER_ADMIN_LISTEN": layout.address(f"{part}-admin"),
        "LLMGW_CONTROLLER_ADVERTISE": layout.address(part),
    }
    return Configuration("controller", settings, environment)


def mirror(layout: Layout, *, dsn: str, models: Sequence[Mapping[str, Any]]) -> Configuration:
    """The mirror; file URLs may name files in the folders of the catalog's weights and nowhere else."""
    urls = [urlsplit(file["url"]) for model in models for file in model.get("weights", {}).get("files", ())]
    roots = sorted({str(PurePosixPath(unquote(url.path)).parent) for url in urls if url.scheme == "file"})
    settings = {
        "listen": layout.address("mirror"),
        "http_listen": layout.address("mirror-http"),
        "admin_listen": layout.address("mirror-admin"),
        "data_dir": str(layout.data("mirror")),
        "dsn": dsn,
        "file_roots": roots,
        "disk_reserve_bytes": DISK_RESERVE_BYTES,
    }
    return Configuration("mirror", settings)


def agent(layout: Layout, node: Node) -> Configuration:
    """A node with declared GPUs."""
    first, last = node.engine_ports
    settings = {
        "node_id": node.node_id,
        "controller": layout.controllers,
        "admin_listen": layout.address(f"{node.node_id}-admin"),
        "management_address": HOST,
        "data_dir": str(layout.data(node.node_id)),
        "engine_ports": f"{first}-{last}",
        "inventory": "declared",
        "devices": [
            {"id": f"gpu-{index}", "gpu_class": gpu.gpu_class, "memory": gpu.memory_bytes}
            for index, gpu in enumerate(node.gpus)
        ],
        "disk_reserve": DISK_RESERVE_BYTES,
    }
    return Configuration(node.node_id, settings)


def router(layout: Layout, *, dsn: str, redis_url: str) -> Configuration:
    """The router. It records usage; it asks for no key, since it stays on loopback."""
    settings = {
        "listen": layout.address("router"),
        "admin_listen": layout.address("router-admin"),
        "controller": layout.controllers,
        "redis_url": redis_url,
        "database_url": dsn,
        "require_keys": False,
        "router_id": "router-1",
        "state_dir": str(layout.data("router")),
        "workers": 1,
        "activity_tick_s": ACTIVITY_TICK_S,
    }
    return Configuration("router", settings)
