"""Send the messages of a selection to Kafka, some thousands in each commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_poison.desk import sql
from airflow_poison.desk.found import files_of
from airflow_poison.passes.relay import FROM
from airflow_poison.passes.to_kafka import KEYS, SendToKafkaResult, send_to_kafka
from airflow_poison.values.errors import MessageClaimedError, MessageNotFoundError, SettingError
from airflow_poison.values.fault_points import reach

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from airflow_poison.desk.selection import Selection
    from airflow_poison.sources.kafka import Kafka
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

CHUNK = 10_000
"""Messages of one commit."""
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Selected:
    """The messages that meet a selection.

    :param free: the lookup ids of those that no pass has claimed, in their order.
    :param claimed: how many others there are.
    """

    free: pa.Array[Any]
    claimed: int

    @property
    def number(self) -> int:
        """How many they are."""
        return len(self.free) + self.claimed

    def part(self, first: int) -> list[int]:
        """Return the lookup ids of one commit, from the given one on."""
        return [number for number in self.free.slice(first, CHUNK).to_pylist() if number is not None]


def selected(table: QueueTable, selection: Selection, among: Sequence[int] | None = None) -> Selected:
    """Return the messages that meet a selection now, and can be sent. Raises SettingError, QueryError.

    :param among: of these only.
    """
    import pyarrow.compute as pc

    if selection.sub_queue is not None and selection.sub_queue not in FROM:
        raise SettingError("sub_queue", selection.sub_queue.value, f"one of {', '.join(sorted(FROM))}")
    snapshot = table.snapshot()
    files = [file for file in files_of(snapshot.files, selection) if file.sub_queue in FROM]
    claimed = [str(table.folder.here(file.path)) for file in files if file.path in snapshot.claimed_paths]
    with sql.messages(table, files) as engine:
        where, values = sql.condition(engine, selection, among)
        held = "file in (select unnest(?::varchar[])) as held"
        engine.execute(f"create temp table chosen as select lookup_id, {held} from located where {where}", [claimed, *values])
        rows = engine.sql("select lookup_id, held from chosen order by lookup_id").to_arrow_table()
    free = rows.filter(pc.invert(rows["held"]))
    return Selected(free["lookup_id"].combine_chunks(), rows.num_rows - free.num_rows)


def send_selected(table: QueueTable, selection: Selection, kafka: Kafka, clock: Clock, *, key: str = KEYS[0]) -> SendToKafkaResult:
    """Move the messages that meet a selection now to a topic, chunk by chunk, and what earlier calls have left on its way there.

    A call that dies has sent whole chunks; the next call sends the others. A message that a pass has claimed, or that has left its sub-queue before
    its chunk is sent, stays.

    Raises what ``send_to_kafka`` raises, and QueryError; earlier chunks are in the topic then.
    """
    found = selected(table, selection)
    sent = finished = moved = returned = 0
    for start in range(0, max(1, len(found.free)), CHUNK):
        reach("desk.to_kafka.before_chunk")
        result, number = _send_chunk(table, selection, found.part(start), kafka, clock, key)
        sent, finished, moved, returned = sent + result.sent, finished + result.finished, moved + number, returned + result.returned
    return SendToKafkaResult(table.name, kafka.topic, sent, finished, found.number - moved, returned)


def _send_chunk(  # noqa: PLR0917
    table: QueueTable, selection: Selection, lookup_ids: list[int], kafka: Kafka, clock: Clock, key: str
) -> tuple[SendToKafkaResult, int]:
    """Send messages of a selection, without those that have left meanwhile; return how many were moved, too."""
    places = FROM if selection.sub_queue is None else {selection.sub_queue}
    for _ in range(_TRIES - 1):
        try:
            return send_to_kafka(table, lookup_ids, kafka, clock, key=key, places=places), len(lookup_ids)
        except (MessageNotFoundError, MessageClaimedError):
            lookup_ids = selected(table, selection, lookup_ids).part(0)
    return send_to_kafka(table, lookup_ids, kafka, clock, key=key, places=places), len(lookup_ids)
