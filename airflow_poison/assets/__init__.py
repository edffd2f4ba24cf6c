"""Assets: a queue as something that DAGs are scheduled by."""

from __future__ import annotations

from airflow_poison.assets.happened import happened
from airflow_poison.assets.queue import queue_asset

__all__ = ["happened", "queue_asset"]
