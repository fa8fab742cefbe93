"""What each service's configuration file says in the lab. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmgw_lab.layout import HOST, Layout, Node

#: All ready within a second or two of a fault, so that a first look at a failure is short.
BEAT_INTERVAL_S = 1.0


def controller(
    layout: Layout, part: str, *, dsn: str, redis_url: str, models: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """One of the two controllers; both have the same catalog."""
    return {
        "name": part,
        "cluster": "lab",
        "listen": layout.address(part),
        "admin_listen": layout.address(f"{part}-admin"),
        "advertise": layout.address(part),
        "dsn": dsn,
        "redis_url": redis_url,
        "mirror": layout.address("mirror"),
        "mirror_url": f"http://{layout.address('mirror-http')}",
        "models": list(models),
    }


def mirror(layout: Layout, *, dsn: str) -> dict[str, Any]:
    """The mirror."""
    return {
        "listen": layout.address("mirror"),
        "http_listen": layout.address("mirror-http"),
        "admin_listen": layout.address("mirror-admin"),
        "data_dir": str(layout.data("mirror")),
        "dsn": dsn,
    }


def agent(layout: Layout, node: Node) -> dict[str, Any]:
    """A node with declared GPUs."""
    first, last = node.engine_ports
    return {
        "node_id": node.node_id,
        "controller": layout.controllers,
        "admin_listen": layout.address(f"{node.node_id}-admin"),
        "management_address": HOST,
        "data_dir": str(layout.data(node.node_id)),
        "engine_ports": f"{first}-{last}",
        "inventory": "declared",
        "devices": [{"gpu_class": gpu.gpu_class, "memory_bytes": gpu.memory_bytes} for gpu in node.gpus],
    }


def router(layout: Layout, *, redis_url: str) -> dict[str, Any]:
    """The router."""
    return {
        "listen": layout.address("router"),
        "admin_listen": layout.address("router-admin"),
        "controller": layout.controllers,
        "redis_url": redis_url,
        "router_id": "router-1",
        "state_dir": str(layout.data("router")),
        "workers": 1,
    }
