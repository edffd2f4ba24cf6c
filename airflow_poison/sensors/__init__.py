"""Sensors: they read queue state in milliseconds, without a JVM."""
