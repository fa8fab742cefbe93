"""What comes in by the client port and goes to no engine: an aiohttp application on a unix socket."""
