"""Take: what is new in a source becomes messages, and the source's new position is in the same commit.

Killed anywhere and run again, nothing is missing and nothing comes twice: what was read is in the queue together with the position behind it, or not
at all. Of two that take a source at the same time one commits; the other one's work is thrown away, and it looks again from where the first has come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_poison.passes.runs import check_key
from airflow_poison.passes.send import as_messages, masking_of
from airflow_poison.sources.bodies import alone, decoded, with_fields
from airflow_poison.sources.rows import to_messages
from airflow_poison.sources.source import ERROR, JsonValue, Position, Reached, Source, Take
from airflow_poison.store.files import Advance, Sent, Snapshot
from airflow_poison.values.errors import InputError, SourceError, SourceTakenError
from airflow_poison.values.libraries import pa
from airflow_poison.values.mapping import ColumnMapping
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from airflow_poison.store.plans import StoredSource
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock
    from airflow_poison.values.masking import Masking

_log = logging.getLogger(__name__)
_TRIES = 20
_JOINED_ROWS, _JOINED_BYTES = 10_000, 64 << 20


@dataclass(frozen=True, slots=True)
class TakeResult(Plain):
    """What a take did.

    :param what: was new, in words; empty: nothing was.
    :param sent: messages that are in the queue because of this key, the malformed ones included.
    :param malformed: of them, records that are not what they should be: they are in the poison sub-queue.
    :param first_lookup_id: the id of the first; they are consecutive, the malformed ones last. 0: nothing was new.
    :param repeated: an earlier take with this key had done it; nothing was taken now.
    :param held: of them, messages that were held back because the queue was disabled then.
    :param position: how far the source has been taken, in words.
    :param passed_over: what there is and was not taken, a sentence for each reason, with what to do.
    """

    queue: str
    source: str
    what: str
    sent: int
    malformed: int
    first_lookup_id: int
    repeated: bool
    held: int
    position: str
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourcePosition(Plain):
    """How far a source was taken into a queue.

    :param kind: the class of the source.
    :param position: in words.
    :param at: in the source's own values.
    :param taken_at: when something was taken from it last.
    :param messages: taken from it since its position was reset; ``malformed`` of them were not what they should be.
    """

    source: str
    kind: str
    position: str
    at: Mapping[str, JsonValue]
    taken_at: str
    messages: int
    malformed: int


def positions(table: QueueTable, snapshot: Snapshot | None = None) -> tuple[SourcePosition, ...]:
    """Return how far each source was taken into a queue, by name. Reads a row for each.

    :param snapshot: of this version. None: the newest.
    """
    return tuple(_position(each) for each in table.stored_sources(snapshot))


def reset_position(table: QueueTable, source: str, clock: Clock) -> bool:
    """Forget how far a source was taken: the next take begins where the source begins. What is in the queue stays. False when it was not known."""
    return table.forget_source(source, clock.now())


def take(
    table: QueueTable,
    source: Source,
    *,
    key: str,
    clock: Clock,
    mapping: ColumnMapping | None = None,
    limit: int | None = None,
    between: tuple[str, str] | None = None,
    read: Callable[[Take], Iterator[pa.RecordBatch]] | None = None,
) -> TakeResult:
    """Add what is new in a source to ``main``, with its new position, in one commit. Malformed records go to ``poison``.

    :param source: connected, see ``Source.connected``.
    :param key: a second take with the same key takes nothing.
    :param mapping: which columns of the records become which parts of messages; of a source without columns, which fields of JSON bodies. None:
        the body is one JSON object of all columns, or what arrived.
    :param limit: take at most so many messages, as far as the source can stop there.
    :param between: a backfill: what lies between two places of the source, whatever was taken before. The position stays as it is.
    :param read: reads the records instead of ``Take.batches``, elsewhere.
    Raises SourceError, InputError, StoreUnreachableError; then nothing was sent, and the position is where it was.
    """
    if not isinstance(source, Source):
        raise InputError(
            f"source={source!r:.100} is {type(source).__name__}; expected a source: Files('/landing/*.json'), Kafka, DeltaChanges, Jdbc or one of "
            "yours. Nothing was sent."
        )
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit!r}: expected a number of messages from 1 on, or None for all that is new. Nothing was sent.")
    if (done := table.sent_before(check_key(key))) is not None:
        return _result(table, source, done, "")
    for _ in range(_TRIES):
        known = table.stored_source(source.name)
        if known is not None and between is None:
            source.acknowledge(begin(table, known))
        planned = source.between(*between) if between is not None else source.plan(begin(table, known), limit=limit)
        if planned is None or not planned.what:
            return _result(table, source, None, "", () if planned is None else planned.passed_over)
        messages = Messages(source, mapping, clock.now(), partial(masking_of, table))
        advance = None if between is not None else advance_of(source, known, planned, messages, clock.now())
        try:
            sent = table.append(messages.of(planned.batches() if read is None else read(planned)), key, clock.now(), advance, of_source=True)
        except SourceTakenError:
            continue
        if between is None:
            acknowledged(table, source)
        return _result(table, source, sent, planned.what, planned.passed_over)
    raise SourceError(
        f"Source {source.name!r} was taken into queue {table.name!r} by others {_TRIES} times while this run read what was new. Nothing was sent. "
        "Run fewer tasks that take it at once; a pool of one slot does that."
    )


def begin(table: QueueTable, known: StoredSource | None) -> Position:
    """Return where the next take of a source begins."""
    return Position() if known is None else Position(known.record["at"], lambda: table.source_keys(known))


def acknowledged(table: QueueTable, source: Source) -> None:
    """Let the source know that its new position is recorded. What it cannot do now, it does before the next take, which raises."""
    try:
        source.acknowledge(begin(table, table.stored_source(source.name)))
    except SourceError as error:
        _log.warning("What was taken from source %r is in queue %r, and the source could not be informed: %s", source.name, table.name, error)


def advance_of(source: Source, known: StoredSource | None, planned: Take, messages: Messages, now: datetime) -> Callable[[], Advance]:
    """Return what says the position behind a take, when all of it was read."""
    before: Mapping[str, Any] = {} if known is None else known.record

    def reached() -> Advance:
        now_at: Reached = planned.reached()
        record = {
            "at": dict(now_at.at),
            "kind": type(source).__name__,
            "position": source.describe(now_at.at),
            "what": planned.what,
            "taken_at": now.isoformat(),
            "messages": before.get("messages", 0) + messages.count,
            "malformed": before.get("malformed", 0) + messages.malformed,
        }
        return Advance(source.name, None if known is None else known.file.path, record, now_at.keys, now_at.keys_since)

    return reached


def _result(table: QueueTable, source: Source, sent: Sent | None, what: str, passed_over: tuple[str, ...] = ()) -> TakeResult:
    known = table.stored_source(source.name)
    position = known.record["position"] if known is not None else source.describe({})
    if sent is None:
        return TakeResult(table.name, source.name, what, 0, 0, 0, repeated=False, held=0, position=position, passed_over=passed_over)
    first = sent.first_lookup_id if sent.messages else 0
    return TakeResult(table.name, source.name, what, sent.messages, sent.malformed, first, sent.repeated, sent.held, position, passed_over)


def _position(found: StoredSource) -> SourcePosition:
    record = found.record
    return SourcePosition(found.name, record["kind"], record["position"], record["at"], record["taken_at"], record["messages"], record["malformed"])


# Records as messages --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Messages:
    """Makes messages of a source's records.

    :param masking: returns what errors do not have.
    :ivar count: how many; ``malformed`` of them are not what they should be.
    """

    source: Source
    mapping: ColumnMapping | None
    now: datetime
    masking: Callable[[], Masking | None]
    count: int = 0
    malformed: int = 0

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches of messages; the malformed ones have a ``last_error``. Raises InputError for what concerns every row, SourceError."""
        for batch in _joined(batches):
            is_body = not self.source.columns or ERROR in batch.schema.names
            for made in alone(batch, lambda some: as_messages(self._records(some), self.masking), is_body=is_body):
                messages = as_messages(made, self.masking)
                self.count += messages.num_rows
                if "last_error" in messages.schema.names:
                    self.malformed += messages.num_rows - messages.column("last_error").null_count
                yield messages

    def _records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.source.columns and ERROR not in batch.schema.names:
            return decoded(self._mapped(batch), self.source.schema)
        return self._with_fields(decoded(batch, self.source.schema))

    def _mapped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return to_messages(batch, self.mapping or ColumnMapping(), self.now)

    def _with_fields(self, records: pa.RecordBatch) -> pa.RecordBatch:
        return records if self.mapping is None or self.source.columns else with_fields(records, self.mapping, self.now)


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield small batches of equal columns as one: a folder may have a million files of a line."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if waiting and (rows >= _JOINED_ROWS or size >= _JOINED_BYTES or not waiting[0].schema.equals(batch.schema)):
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
