"""Queue tables in an object store: its requests, the copy of a table on this node, the log, and the store."""
