-- When every member router had put the victim aside. Only reports newer than that can confirm that it is idle.
ALTER TABLE evictions ADD COLUMN acknowledged_at timestamptz;
