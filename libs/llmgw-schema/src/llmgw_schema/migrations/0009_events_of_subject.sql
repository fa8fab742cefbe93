-- Events of a subject and of its parts ("m", "m/1"): a range of names byte by byte, whatever the collation of
-- the database, and the newest of one name without a sort.
CREATE INDEX events_of_subject ON events (subject COLLATE "C", event_id);
-- Its order is that of a language: no range of names is found by it.
DROP INDEX events_by_subject;
