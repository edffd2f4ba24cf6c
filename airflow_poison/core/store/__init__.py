"""Stores of queues: the seam, queue tables over a log, the Delta log and one in memory."""

from airflow_poison.core.store.opening import open_store

__all__ = ["open_store"]
