ALTER TABLE replicas
    -- A drain that nobody wished but the controller: taken back, not cut, when it cannot end well.
    ADD COLUMN revocable boolean NOT NULL DEFAULT false,
    -- Since this reading of their gauges nothing ran at the engines of a draining replica.
    ADD COLUMN quiet_at timestamptz;

-- Also: beside others, because requests waited for them.
ALTER TABLE replicas DROP CONSTRAINT replicas_cause_check;
ALTER TABLE replicas
    ADD CONSTRAINT replicas_cause_check CHECK (cause IN ('configuration', 'activation', 'demand'));
