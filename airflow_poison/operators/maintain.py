"""QueueMaintainOperator: keep queues small and fast without stopping anybody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_poison.core.errors import SettingError
from airflow_poison.hooks.poison import QueueHook

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from airflow.sdk import Context


class QueueMaintainOperator(BaseOperator):
    """Join small files, remove what nobody needs any more, shorten the log. Senders and passes go on. Starts no JVM.

    Returns ``{"queue", "relayed", "compacted", "removed", "kept", "freed_bytes", "oldest_version", "checkpoint", "expired_claims"}``; claims that a
    dead run has left are reported, not taken over: the next receive task finishes them.

    :param queue_name: the queue's name (``queue`` is the executor's); it must exist. (templated)
    :param retention: how long older versions of the table can still be read, a duration (``7d``): longer than the longest pass. (templated)
    :param min_files: as many small files have to follow each other before they are joined.
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "retention", "conn_id")
    ui_color = "#e6eef5"

    def __init__(
        self,
        *,
        queue_name: str,
        retention: timedelta | str = "7d",
        min_files: int = 16,
        conn_id: str = QueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.retention = retention
        self.min_files = min_files
        self.conn_id = conn_id

    def execute(self, context: Context) -> dict[str, object]:
        """Maintain the queue. Raises QueueNotFoundError, SettingError, StoreUnreachableError, TableChangedError."""
        del context
        from airflow_poison.core.clock import EXAMPLES, SystemClock, read_duration
        from airflow_poison.core.passes.maintain import maintain

        retention = read_duration(self.retention) if isinstance(self.retention, str) else self.retention
        if retention is None:
            raise SettingError("retention", self.retention, EXAMPLES)
        store = QueueHook(self.conn_id).store()
        result = maintain(store.open(self.queue_name), SystemClock(), store=store, retention=retention, min_files=self.min_files)
        self.log.info(
            "Queue %r: joined %s files, removed %s, freed %s bytes.",
            self.queue_name,
            f"{result.compacted['files']:,}",
            ", ".join(f"{number:,} {what}" for what, number in result.removed.items()),
            f"{result.freed_bytes:,}",
        )
        for claim in result.expired_claims:
            self.log.warning(
                "Queue %r: the claim %s on %s messages expired at %s: its run is dead. Run the receive task again, it finishes the claim.",
                self.queue_name,
                claim["key"],
                claim["messages"],
                claim["expired_at"],
            )
        return result.to_dict()
