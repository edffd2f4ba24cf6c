"""Task groups: whole patterns in one call."""

from __future__ import annotations

from airflow_poison.taskgroups.recovery import recovery
from airflow_poison.taskgroups.retry_cycle import retry_cycle

__all__ = ["recovery", "retry_cycle"]
