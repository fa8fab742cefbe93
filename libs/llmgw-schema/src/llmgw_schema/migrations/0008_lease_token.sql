-- Which attempt took the lease: an answer that was lost on the way can be told from somebody else's success.
ALTER TABLE controller_lease ADD COLUMN token text;
