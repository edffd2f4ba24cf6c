"""Maintainers: what maintenance does beside everything else. Apart from the other actors, so that campaigns run without it, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.core.message import SubQueue
from airflow_poison.core.store.table import compaction

if TYPE_CHECKING:
    from airflow_poison.core.store.table.base import Table

_MESSAGES = tuple(place.value for place in SubQueue)


def maintain_one(table: Table) -> None:
    """Join small files of messages. Events are left as they are written, for the checker, and nothing is removed that it reads."""
    compaction.compact(table, 2, _MESSAGES)
