-- Who could lead, and under which configuration. Each controller writes its own row and no other; nothing is
-- decided by these rows, they are shown and told to agents.
CREATE TABLE controllers (
    address     text PRIMARY KEY,
    name        text        NOT NULL,
    config_hash text        NOT NULL,
    version     text        NOT NULL,
    seen_at     timestamptz NOT NULL
);
