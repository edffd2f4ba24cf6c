"""Spark: the session, and the stages that run on it."""
