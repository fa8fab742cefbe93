-- API keys. What the key is, nobody knows but its holder: a digest finds it, its beginning names it in lists.
CREATE TABLE api_keys (
    key_id     text PRIMARY KEY,
    digest     bytea       NOT NULL UNIQUE CHECK (octet_length(digest) = 32),
    prefix     text        NOT NULL,
    -- What it is for, in the words of whoever made it.
    name       text        NOT NULL,
    -- Path in the tree of tenants, "/" between levels. Null: nobody's in particular.
    tenant     text,
    -- Null: all of them.
    models     text[],
    -- Null: every profile, the usual default; else the first is the key's own default.
    profiles   text[],
    explain    boolean     NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL,
    -- Null: never.
    expires_at timestamptz,
    revoked_at timestamptz,
    -- Number of the change that the row had last; set by the trigger, never by a writer.
    change     bigint      NOT NULL DEFAULT 0
);
CREATE INDEX api_keys_changes ON api_keys (change);

-- One row: the number of the newest change, and of the newest one that a reader of rows cannot see. Whoever
-- writes keys holds it until the commit, so numbers become visible in their order and none is overtaken.
CREATE TABLE api_keys_version (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    version    bigint NOT NULL,
    -- Routers that know less than this read all keys: rows were deleted.
    deleted_at bigint NOT NULL
);
INSERT INTO api_keys_version (version, deleted_at) VALUES (1, 1);

CREATE FUNCTION api_keys_note_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE api_keys_version SET version = version + 1 RETURNING version INTO NEW.change;
    -- A hint, sent with the commit; routers that miss it ask for the version.
    PERFORM pg_notify('llmgw_keys', NEW.change::text);
    RETURN NEW;
END $$;
CREATE TRIGGER api_keys_changed BEFORE INSERT OR UPDATE ON api_keys
    FOR EACH ROW EXECUTE FUNCTION api_keys_note_change();

CREATE FUNCTION api_keys_note_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE api_keys_version SET version = version + 1, deleted_at = version + 1;
    PERFORM pg_notify('llmgw_keys', 'deleted');
    RETURN NULL;
END $$;
CREATE TRIGGER api_keys_deleted AFTER DELETE OR TRUNCATE ON api_keys
    FOR EACH STATEMENT EXECUTE FUNCTION api_keys_note_delete();

-- What each request to an engine has used. Written by routers, each row once: `usage_id` is the router's own,
-- while a client may send the same request id twice.
CREATE TABLE usage_records (
    usage_id      text PRIMARY KEY,
    request_id    text        NOT NULL,
    router_id     text        NOT NULL,
    -- Not a foreign key: keys of a router's own file are nowhere else.
    key_id        text,
    tenant        text,
    model         text        NOT NULL,
    replica_id    text,
    path          text        NOT NULL,
    began_at      timestamptz NOT NULL,
    -- Null, like the status: the process that served it died first.
    ended_at      timestamptz,
    -- As sent; 499: the client left first.
    status        int,
    -- The router's own word where it refused or interrupted.
    code          text,
    -- Who says so: the engine; its events counted to the end; those of a cut stream, with a guess at the
    -- prompt; nobody.
    source        text        NOT NULL CHECK (source IN ('engine', 'counted', 'estimated', 'unknown')),
    -- False: interrupted.
    complete      boolean     NOT NULL,
    -- Null: unknown, which is not 0.
    prompt_tokens bigint CHECK (prompt_tokens >= 0),
    cached_tokens bigint CHECK (cached_tokens >= 0),
    output_tokens bigint CHECK (output_tokens >= 0),
    ttft_ms       double precision,
    duration_ms   double precision,
    written_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX usage_records_by_time ON usage_records (began_at);
CREATE INDEX usage_records_by_key ON usage_records (key_id, began_at);
CREATE INDEX usage_records_by_tenant ON usage_records (tenant, began_at);
