"""Deployments: what operators wish of a model beside its spec. The spec, configured or stored, stays as it is.

A row outlives restarts and changes of the spec, and ends when nothing is wished any more.
"""

from llmgw_controller.core.catalog import Model
from llmgw_controller.core.state import Stored
from llmgw_kit.ids import ModelId


def is_stopped(stored: Stored, name: ModelId) -> bool:
    """An operator stopped it: nothing starts it, neither `replicas` nor a request."""
    wish = stored.deployments.get(name)
    return wish is not None and wish.stopped


def effective_pinned(stored: Stored, model: Model) -> bool:
    """Never evicted and never let go as idle: an operator's word, or else the spec's."""
    wish = stored.deployments.get(model.name)
    return model.pinned if wish is None or wish.pinned is None else wish.pinned
