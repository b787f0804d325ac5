-- Where both tables end, signed by the operator: one row, replaced with each batch.

CREATE TABLE heads (
    only     INTEGER PRIMARY KEY CHECK (only = 1),
    document TEXT NOT NULL  -- JSON: database, number and chain of each table's last row, time, key, signature
);
