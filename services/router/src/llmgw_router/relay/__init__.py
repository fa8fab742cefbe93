"""The hot path: a process per worker, importing the standard library, uvloop, httptools and msgspec only."""
