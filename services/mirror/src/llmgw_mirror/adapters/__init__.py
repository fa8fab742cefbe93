"""What touches the world: disk, upstreams, Postgres, gRPC, HTTP."""
