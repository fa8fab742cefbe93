"""Names in an engine's environment by which it, and every child of it, is known to be ours."""

#: Random, one a launch.
TOKEN = "LLMGW_SHARD_TOKEN"
#: Names the data folder of the agent that started it: two agents of one machine must not reap each other's.
OWNER = "LLMGW_SHARD_OWNER"
#: For people: node/shard.
LABEL = "LLMGW_SHARD_LABEL"
SPEC_HASH = "LLMGW_SHARD_SPEC_HASH"
