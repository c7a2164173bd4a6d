-- What tasks may cost the data that are given to them, whole and once.

CREATE TABLE claim (
    ordinal bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    data text COLLATE "C" NOT NULL,
    holder bytea NOT NULL,
    trust_domain text COLLATE "C" NOT NULL,
    aggregator text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    noise_digest bytea NOT NULL,
    against text NOT NULL CHECK (against IN ('server', 'broken-masks')),
    epsilon double precision NOT NULL,
    delta double precision NOT NULL,
    shift double precision,
    distance double precision NOT NULL,
    added_delta double precision NOT NULL,
    at bigint NOT NULL,
    UNIQUE (data, holder, trust_domain, aggregator, task, noise_digest)
);
