-- What operators wish of a model beside its spec; for configured and stored ones alike.
CREATE TABLE deployments (
    model      text PRIMARY KEY,
    stopped    boolean     NOT NULL,
    -- Null: as the spec says.
    pinned     boolean,
    changed_at timestamptz NOT NULL
);

-- Starts that failed: what backoff and the judgement of a profile stand on.
CREATE TABLE placement_attempts (
    attempt_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model      text        NOT NULL,
    profile    text        NOT NULL,
    gpu_class  text        NOT NULL,
    spec_hash  text        NOT NULL,
    replica_id text        NOT NULL,
    node_ids   text[]      NOT NULL,
    -- The stable word of the failure, and what people are told.
    reason     text        NOT NULL,
    text       text        NOT NULL,
    at         timestamptz NOT NULL
);
CREATE INDEX placement_attempts_newest ON placement_attempts (model, profile, gpu_class, at DESC);

-- One a victim's group epoch: a replica that was evicted and came back may be evicted again.
CREATE TABLE evictions (
    eviction_id       text PRIMARY KEY,
    victim_replica_id text        NOT NULL,
    victim_model      text        NOT NULL,
    beneficiary_model text        NOT NULL,
    beneficiary_replica_id text,
    decided_at        timestamptz NOT NULL,
    state             text        NOT NULL CHECK (state IN ('draining', 'done', 'cancelled', 'failed')),
    text              text        NOT NULL,
    evidence          text[]      NOT NULL,
    gpus              int         NOT NULL CHECK (gpus > 0),
    idle_s            double precision NOT NULL CHECK (idle_s >= 0),
    predicted_free_s  double precision,
    reload_s          double precision,
    freed_at          timestamptz,
    regretted_at      timestamptz
);
CREATE INDEX evictions_newest ON evictions (decided_at DESC);

-- One row: nothing counts as idle for longer than since then. Raised when a router that had crashed leaves.
CREATE TABLE idleness_floor (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    since timestamptz NOT NULL
);

-- A run is one JSON document: what was measured, of what, with which engine.
CREATE TABLE benchmark_runs (
    run_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model   text        NOT NULL,
    profile text        NOT NULL,
    gpu_class text      NOT NULL,
    at      timestamptz NOT NULL,
    run     jsonb       NOT NULL
);
CREATE INDEX benchmark_runs_newest ON benchmark_runs (model, at DESC);

-- The status as it was, for `status --at`: a serialised GetStatusResponse whenever it had changed.
CREATE TABLE status_history (
    at     timestamptz PRIMARY KEY,
    term   bigint NOT NULL,
    status bytea  NOT NULL
);

-- Why an operator set the node aside.
ALTER TABLE nodes ADD COLUMN reason text;

-- An operator's activation is kept open until then although nobody repeats it.
ALTER TABLE activations ADD COLUMN kept_until timestamptz;

-- The parts of a start, what the agents saw on the devices, and whether the node held the weights already.
ALTER TABLE load_history
    ADD COLUMN fetch_s double precision CHECK (fetch_s >= 0),
    ADD COLUMN load_s double precision CHECK (load_s >= 0),
    ADD COLUMN warm_up_s double precision CHECK (warm_up_s >= 0),
    ADD COLUMN weights_here boolean,
    ADD COLUMN memory_bytes bigint CHECK (memory_bytes >= 0),
    ADD COLUMN engine_version text,
    ADD COLUMN spec_hash text;
