-- The audit database. Rows are only ever added; `chain` makes a change of any of them show.

CREATE TABLE facts (
    name  TEXT PRIMARY KEY,  -- id: the name of this database among all
    value TEXT NOT NULL
);

CREATE TABLE messages (
    seq            INTEGER PRIMARY KEY,
    stream         TEXT    NOT NULL,  -- shard/type/priority
    entry_id       TEXT    NOT NULL,  -- id of the entry in its stream
    message_id     TEXT    NOT NULL,  -- in lower case; '' where the XML could not be read, as below
    type           TEXT    NOT NULL,
    priority       TEXT    NOT NULL,
    sender         TEXT    NOT NULL,
    recipient      TEXT    NOT NULL,
    correlation_id TEXT    NOT NULL,
    parent_id      TEXT    NOT NULL,  -- the message it follows upon: the first reference of its chain
    task_id        TEXT    NOT NULL,
    sent           TEXT    NOT NULL,  -- time in the header
    published_ms   INTEGER NOT NULL,  -- when it entered the stream
    received_ms    INTEGER NOT NULL,  -- when it was written here
    attempt        INTEGER NOT NULL,
    xml            BLOB    NOT NULL,  -- the bytes as they were published
    sha256         TEXT    NOT NULL,  -- of xml
    chain          TEXT    NOT NULL,
    UNIQUE (stream, entry_id)
);

CREATE INDEX messages_by_message ON messages (message_id);
CREATE INDEX messages_by_conversation ON messages (correlation_id, seq);
CREATE INDEX messages_by_parent ON messages (parent_id, type);
CREATE INDEX messages_by_task ON messages (task_id, type);

CREATE TABLE dead_letters (
    seq         INTEGER PRIMARY KEY,
    dead_id     TEXT    NOT NULL UNIQUE,  -- shard and id of the dead letter
    stream      TEXT    NOT NULL,         -- of the entry that died
    entry_id    TEXT    NOT NULL,
    rule        TEXT    NOT NULL,
    reason      TEXT    NOT NULL,
    attempts    INTEGER NOT NULL,
    at_ms       INTEGER NOT NULL,
    received_ms INTEGER NOT NULL,
    chain       TEXT    NOT NULL
);

CREATE INDEX dead_letters_by_entry ON dead_letters (stream, entry_id);
