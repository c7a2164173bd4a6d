-- How many sessions of a task a client may give, and how many of them come back: what
-- else was given back counts.

ALTER TABLE charge ADD COLUMN allowed bigint NOT NULL DEFAULT 0 CHECK (allowed >= 0);
ALTER TABLE charge ADD COLUMN refunds bigint NOT NULL DEFAULT 0 CHECK (refunds >= 0);
