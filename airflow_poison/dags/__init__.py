"""Ready DAGs, each made by one call."""

from __future__ import annotations

from airflow_poison.dags.queue_alerts import queue_alerts

__all__ = ["queue_alerts"]
