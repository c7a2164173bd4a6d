-- Several aggregators at once: who does what, who is there, and when any of them was.

ALTER TABLE store ADD COLUMN alive bigint, ADD COLUMN blobs bytea;

CREATE TABLE lease (
    name text COLLATE "C" PRIMARY KEY,
    holder text COLLATE "C" NOT NULL,
    token bigint NOT NULL,
    expires bigint NOT NULL
);

CREATE TABLE replica (
    name text COLLATE "C" PRIMARY KEY,
    address text NOT NULL,
    version text NOT NULL,
    started bigint NOT NULL,
    seen bigint NOT NULL
);
