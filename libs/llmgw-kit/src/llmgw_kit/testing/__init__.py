"""What tests and the lab start for real: Postgres, Redis, engines, services, all as ordinary processes."""
