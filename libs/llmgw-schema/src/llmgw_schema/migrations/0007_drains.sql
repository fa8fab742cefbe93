ALTER TABLE replicas
    -- A drain that nobody wished but the controller: taken back, not cut, when it cannot end well.
    ADD COLUMN revocable boolean NOT NULL DEFAULT false,
    -- Since this reading of their gauges nothing ran at the engines of a draining replica.
    ADD COLUMN quiet_at timestamptz;
