-- Where a version comes from, who asked for it, and what became of it.

ALTER TABLE weights_versions
    ADD COLUMN repository text,
    ADD COLUMN commit_id text CHECK (commit_id ~ '^[0-9a-f]{40}$'),
    ADD COLUMN revision text,
    -- When every byte was last read and found right.
    ADD COLUMN verified_at timestamptz;

ALTER TABLE weights_files
    ADD COLUMN companion boolean NOT NULL DEFAULT false,
    ADD COLUMN expected_git_id text CHECK (expected_git_id ~ '^[0-9a-f]{40}$'),
    ADD COLUMN proof text CHECK (proof IN ('sha256', 'git', 'none'));

-- Append only; of every store, outliving the versions it speaks of.
CREATE TABLE weights_history (
    seq      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    store_id text        NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind     text        NOT NULL CHECK (kind IN (
                 'asked', 'published', 'failed', 'cancelled', 'retried', 'verified', 'quarantined',
                 'removed', 'restored', 'purged', 'exported', 'imported')),
    model    text        NOT NULL,
    version  text        NOT NULL,
    path     text,
    asked_by text,
    bytes    bigint CHECK (bytes >= 0),
    text     text        NOT NULL
);

CREATE INDEX weights_history_version ON weights_history (store_id, model, version, seq DESC);
CREATE INDEX weights_history_newest ON weights_history (store_id, seq DESC);
