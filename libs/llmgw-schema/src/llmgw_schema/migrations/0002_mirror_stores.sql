-- One database may stand behind several mirrors. Those over one shared store compete for its leases;
-- those over stores of their own must not meet: hence store_id, which each store names itself.
--
-- The rows copy what a store's own manifests say and are rebuilt from them, so none needs to be kept.
DELETE FROM weights_versions;

ALTER TABLE weights_files DROP CONSTRAINT weights_files_model_version_fkey;
ALTER TABLE weights_files DROP CONSTRAINT weights_files_pkey;
ALTER TABLE weights_versions DROP CONSTRAINT weights_versions_pkey;

ALTER TABLE weights_versions ADD COLUMN store_id text NOT NULL;
ALTER TABLE weights_versions ADD PRIMARY KEY (store_id, model, version);
ALTER TABLE weights_files ADD COLUMN store_id text NOT NULL;
ALTER TABLE weights_files ADD PRIMARY KEY (store_id, model, version, path);
ALTER TABLE weights_files ADD FOREIGN KEY (store_id, model, version) REFERENCES weights_versions ON DELETE CASCADE;

-- The lease is on the content (a file of two versions is fetched once), not on one version's row.
ALTER TABLE weights_files DROP COLUMN fetcher, DROP COLUMN fetch_token, DROP COLUMN fetch_until;

CREATE SEQUENCE weights_lease_token;

-- Who writes one content. A take-over draws a higher token; the part on disk carries it in its name.
CREATE TABLE weights_leases (
    store_id       text        NOT NULL,
    key            text        NOT NULL,
    holder         text        NOT NULL,
    token          bigint      NOT NULL CHECK (token > 0),
    expires_at     timestamptz NOT NULL,
    -- How far its holder is, for the other mirrors over this store.
    state          text        NOT NULL CHECK (state IN ('fetching', 'verifying')),
    received_bytes bigint      NOT NULL CHECK (received_bytes >= 0),
    total_bytes    bigint      CHECK (total_bytes >= 0),
    PRIMARY KEY (store_id, key)
);
