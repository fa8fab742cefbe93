-- Times are timestamptz by the database's clock or the leader's term clock, which starts from it.

CREATE TABLE controller_lease (
    name       text PRIMARY KEY,
    holder     text        NOT NULL,
    address    text        NOT NULL,
    term       bigint      NOT NULL CHECK (term > 0),
    expires_at timestamptz NOT NULL,
    UNIQUE (name, term)
);

CREATE TABLE routers (
    router_id   text PRIMARY KEY,
    incarnation text        NOT NULL,
    seen_at     timestamptz NOT NULL,
    -- An earlier incarnation ended without a goodbye, proven dead at this time.
    crashed_at  timestamptz
);

-- Stored models: what `model apply` was given, as canonical JSON. Configuration lives in files.
CREATE TABLE models (
    name       text PRIMARY KEY,
    spec       jsonb       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    changed_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nodes (
    node_id           text PRIMARY KEY,
    boot_id           text        NOT NULL,
    agent_instance    text        NOT NULL,
    version           text        NOT NULL,
    address           text        NOT NULL,
    fabrics           text[]      NOT NULL,
    pool              text,
    engine_port_first int CHECK (engine_port_first BETWEEN 1 AND 65535),
    engine_port_last  int CHECK (engine_port_last BETWEEN engine_port_first AND 65535),
    schedulability    text        NOT NULL CHECK (schedulability IN ('schedulable', 'cordoned', 'draining')),
    session_epoch     bigint      NOT NULL,
    last_heard        timestamptz NOT NULL,
    lost_at           timestamptz
);

CREATE TABLE devices (
    node_id            text NOT NULL REFERENCES nodes ON DELETE CASCADE,
    device_id          text NOT NULL,
    index              int  NOT NULL,
    gpu_class          text NOT NULL,
    memory_total_bytes bigint,
    PRIMARY KEY (node_id, device_id)
);

CREATE TABLE tombstones (
    node_id    text        NOT NULL REFERENCES nodes ON DELETE CASCADE,
    shard_id   text        NOT NULL,
    replica_id text        NOT NULL,
    since      timestamptz NOT NULL,
    PRIMARY KEY (node_id, shard_id)
);

CREATE TABLE replicas (
    replica_id  text PRIMARY KEY,
    model       text        NOT NULL,
    profile     text        NOT NULL,
    spec_hash   text        NOT NULL,
    cause       text        NOT NULL CHECK (cause IN ('configuration', 'activation')),
    wish        text        NOT NULL CHECK (wish IN ('serve', 'drain', 'stop')),
    phase       text        NOT NULL CHECK (phase IN ('wanted', 'reserved', 'starting', 'ready', 'draining',
                                                     'stopping', 'stopped', 'unplaceable', 'backoff', 'failed')),
    reason      text,
    until       timestamptz,
    group_epoch bigint      NOT NULL CHECK (group_epoch >= 0),
    failures    int         NOT NULL CHECK (failures >= 0),
    created_at  timestamptz NOT NULL,
    since       timestamptz NOT NULL,
    ready_since timestamptz,
    credential  text,
    story       text[]      NOT NULL
);

CREATE TABLE shards (
    shard_id    text PRIMARY KEY,
    replica_id  text    NOT NULL REFERENCES replicas ON DELETE CASCADE,
    group_epoch bigint  NOT NULL,
    node_id     text    NOT NULL,
    rank        int     NOT NULL CHECK (rank >= 0),
    device_ids  text[]  NOT NULL,
    ports       jsonb   NOT NULL,
    released    boolean NOT NULL
);
CREATE INDEX shards_of_replica ON shards (replica_id);

-- Highest group epoch ever given to a model's replicas: outlives them, so that no endpoint id comes twice.
CREATE TABLE group_epochs (
    model   text PRIMARY KEY,
    highest bigint NOT NULL CHECK (highest > 0)
);

-- A live claim is a row; a freed one is gone. So the primary key is what forbids double booking,
-- and a shard that holds claims cannot be deleted from under them.
CREATE TABLE device_claims (
    node_id   text NOT NULL,
    device_id text NOT NULL,
    shard_id  text NOT NULL REFERENCES shards,
    term      bigint NOT NULL,
    PRIMARY KEY (node_id, device_id)
);
CREATE INDEX device_claims_of_shard ON device_claims (shard_id);

-- shard_id is null while a freed port is in quarantine until the given time.
CREATE TABLE port_leases (
    node_id  text NOT NULL,
    port     int  NOT NULL CHECK (port BETWEEN 1 AND 65535),
    shard_id text REFERENCES shards,
    until    timestamptz,
    term     bigint NOT NULL,
    PRIMARY KEY (node_id, port),
    CHECK ((shard_id IS NULL) <> (until IS NULL))
);
CREATE INDEX port_leases_of_shard ON port_leases (shard_id);

-- One open activation a model: the key says so.
CREATE TABLE activations (
    model     text PRIMARY KEY,
    opened_at timestamptz NOT NULL,
    asked_at  timestamptz NOT NULL
);

CREATE TABLE load_history (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model     text             NOT NULL,
    profile   text             NOT NULL,
    gpu_class text             NOT NULL,
    seconds   double precision NOT NULL CHECK (seconds >= 0),
    at        timestamptz      NOT NULL
);
CREATE INDEX load_history_newest ON load_history (model, profile, gpu_class, at DESC);

CREATE TABLE events (
    event_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL,
    term     bigint      NOT NULL,
    kind     text        NOT NULL,
    subject  text        NOT NULL,
    text     text        NOT NULL,
    severity text        NOT NULL CHECK (severity IN ('trouble', 'note', 'info'))
);
CREATE INDEX events_by_time ON events (at DESC);
CREATE INDEX events_by_subject ON events (subject, at DESC);

CREATE TABLE weights_versions (
    model      text        NOT NULL,
    version    text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (model, version)
);

CREATE TABLE weights_files (
    model          text   NOT NULL,
    version        text   NOT NULL,
    path           text   NOT NULL,
    url            text   NOT NULL,
    expected_sha256 text CHECK (expected_sha256 ~ '^[0-9a-f]{64}$'),
    expected_bytes bigint CHECK (expected_bytes >= 0),
    state          text   NOT NULL CHECK (state IN ('failed', 'absent', 'fetching', 'verifying', 'present')),
    sha256         text CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    size_bytes     bigint CHECK (size_bytes >= 0),
    error          text,
    -- Who fetches it: a mirror instance, fenced by a token that grows with each take-over.
    fetcher        text,
    fetch_token    bigint NOT NULL DEFAULT 0,
    fetch_until    timestamptz,
    changed_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (model, version, path),
    FOREIGN KEY (model, version) REFERENCES weights_versions ON DELETE CASCADE,
    CHECK (state <> 'present' OR (sha256 IS NOT NULL AND size_bytes IS NOT NULL))
);
