"""How the router's supervisor starts, feeds, watches and replaces its relay workers."""
