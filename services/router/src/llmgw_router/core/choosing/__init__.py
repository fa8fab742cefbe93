"""Which endpoint gets a request: load, weights, tiers, known prefixes, sessions, failures. All of it pure."""
