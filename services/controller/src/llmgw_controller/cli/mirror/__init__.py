"""`llmgwctl mirror`: models found in the registry, fetched, proved and kept. Speaks to a mirror, and to the
controller for what only it knows: which GPUs the fleet has, and whose weights are in use."""
