-- How many of a task's sessions come back: what else was given back counts.

ALTER TABLE charge ADD COLUMN refunds bigint NOT NULL DEFAULT 0 CHECK (refunds >= 0);
