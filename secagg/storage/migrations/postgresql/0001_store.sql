-- The tables of one store.  A time is a bigint of milliseconds since 1970.
-- Names are compared byte by byte, as they are everywhere else.

CREATE TABLE store (
    store_id bytea NOT NULL,
    generation bigint NOT NULL
);

CREATE TABLE session (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key text COLLATE "C" NOT NULL UNIQUE,
    role text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    peer text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    sequence bigint NOT NULL,
    round integer NOT NULL,
    opened bigint,
    deadline bigint,
    born bigint NOT NULL,
    start bytea NOT NULL,
    chain bytea NOT NULL,
    ended bigint,
    receipt bytea,
    timeline text NOT NULL,
    spent boolean NOT NULL,
    restored boolean NOT NULL,
    header bytea NOT NULL,
    UNIQUE (role, task, peer, number),
    CHECK ((ended IS NULL) = (receipt IS NULL))
);
CREATE INDEX session_open ON session (role, task) WHERE ended IS NULL;

CREATE TABLE record (
    session bigint NOT NULL REFERENCES session (position),
    sequence bigint NOT NULL,
    kind integer NOT NULL,
    sender text COLLATE "C",
    chain bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (session, sequence)
);
CREATE UNIQUE INDEX record_once ON record (session, kind, sender)
    WHERE sender IS NOT NULL;
-- Masked and random bytes do not compress.
ALTER TABLE record ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE tally (
    role text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    peer text COLLATE "C" NOT NULL,
    highest_number bigint NOT NULL DEFAULT 0,
    spent bigint NOT NULL DEFAULT 0,
    facts bytea NOT NULL DEFAULT '',
    PRIMARY KEY (role, task, peer)
);

CREATE TABLE task (
    task_id text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    state text NOT NULL CHECK (state IN ('running', 'paused', 'stopped')),
    settings text NOT NULL,
    plan bytea NOT NULL,
    reason text NOT NULL
);

CREATE TABLE charge (
    ordinal bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    trust_domain text COLLATE "C" NOT NULL,
    aggregator text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    session_id bytea NOT NULL,
    noise_digest bytea NOT NULL,
    state smallint NOT NULL CHECK (state IN (1, 2, 3)),
    at bigint NOT NULL,
    UNIQUE (trust_domain, aggregator, task, session_id)
);

CREATE TABLE revocation (
    enrolment_key bytea NOT NULL,
    trust_domain text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    digest bytea NOT NULL,
    PRIMARY KEY (enrolment_key, trust_domain)
);
