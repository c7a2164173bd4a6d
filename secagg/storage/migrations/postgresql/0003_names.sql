-- As whom each of them serves: clients that know one of the names refuse the others.

ALTER TABLE replica ADD COLUMN aggregator text NOT NULL DEFAULT '';
