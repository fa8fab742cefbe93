"""Where the supervisor touches the world: gRPC, Redis, disk, engines' health, the admin pages."""
