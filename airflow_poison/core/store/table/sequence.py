"""The queue's last lookup id: a number of the log that is never forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.core.schema import OUTBOX, SubQueue

if TYPE_CHECKING:
    from airflow_poison.core.store.log import State

SEQUENCE = "seq"
_MESSAGES = frozenset({*(place.value for place in SubQueue), OUTBOX})


def last_id(state: State) -> int:
    """Return the last lookup id; that of the files where a table of format 1 has forgotten it."""
    last = state.number(SEQUENCE)
    return last if last is not None else max((file.max_lookup_id for file in state.files if file.sub_queue in _MESSAGES), default=0)
