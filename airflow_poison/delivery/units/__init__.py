"""Units: messages that are transformed together, as data frames. Who is a culprit when that fails, and what is counted. Knows no Spark."""
