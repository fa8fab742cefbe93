"""Names of things, as types: a node id is never a replica id by accident."""

from typing import NewType

NodeId = NewType("NodeId", str)
DeviceId = NewType("DeviceId", str)
ReplicaId = NewType("ReplicaId", str)
ShardId = NewType("ShardId", str)
ModelId = NewType("ModelId", str)
RouterId = NewType("RouterId", str)

#: Grows with every change of leadership; what carries an older one is refused.
LeaseTerm = NewType("LeaseTerm", int)

#: Of one agent stream; grows with each new stream of a node.
SessionEpoch = NewType("SessionEpoch", int)
