"""The producer of the shared stream (Airflow 3.3): it hears when Airflow has recorded the events that were made of a notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.triggers.shared_stream import SharedStreamProducer

from airflow_poison.triggers.stream import Notice, interests, notices

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable, Sequence

    from airflow.triggers.shared_stream import AdvanceItem


class NoticeProducer(SharedStreamProducer):
    """Supplies the notices of a connection's queues.

    :param conn_id: connection of type ``poison``.
    """

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id

    async def open_stream(self) -> AsyncIterator[tuple[Notice, Notice]]:
        """Yield each notice, with itself as what is handed back."""
        async for notice in notices(self._conn_id, interests(self._conn_id)):
            yield notice, notice

    def get_advance_lane(self, broker_payload: Notice) -> Hashable:
        """Let no queue wait for another."""
        return broker_payload.queue_name

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Note what is recorded. After a failure nothing is noted: the watcher that comes back tells it again, with the same keys."""
        for item in batch:
            if not item.outcome.failed:
                await item.broker_payload.recorded()
