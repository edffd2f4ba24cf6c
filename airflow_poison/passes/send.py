"""Send: check messages and hand them to the store, with the key under which it takes them once."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from airflow_poison.passes.runs import check_key
from airflow_poison.sources.bodies import alone
from airflow_poison.sources.source import ERROR, NO_BODY
from airflow_poison.values.errors import InputError, MessageTooLargeError
from airflow_poison.values.failures import Failure, FailureKind, error_cell
from airflow_poison.values.json_values import utf8
from airflow_poison.values.libraries import pc
from airflow_poison.values.mapping import check_priorities, check_several
from airflow_poison.values.masking import Masking
from airflow_poison.values.schema import DIALOG, MAX_BODY_BYTES, OWN_PROPERTIES, is_reserved, message_schema
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock


SENT = ("message_id", "priority", "group_id", "conversation_id", "message_type", "body", "properties", "expires_at")
"""The columns of a message that are the sender's. The others say what has become of it since; the store writes them."""
_BATCH_BYTES = 256 << 20  # an Arrow column of bytes ends at 2 GiB
_TEXT = 4_096
_PLACE = re.compile(r"\Aline [\d,]+ of [^:]*: ")


@dataclass(frozen=True, slots=True)
class SendResult(Plain):
    """What a send did.

    :param sent: messages that are in the queue because of this key, the malformed ones included.
    :param first_lookup_id: the id of the first; they are consecutive, the malformed ones last.
    :param repeated: an earlier send with this key had done it; nothing was sent now.
    :param held: of them, messages that were held back because the queue was disabled then; they arrive when it is enabled (spec SB-19).
    :param malformed: of them, records that are not what they should be: they are in the poison sub-queue.
    """

    queue: str
    sent: int
    first_lookup_id: int
    repeated: bool
    held: int = 0
    malformed: int = 0


def send(table: QueueTable, batches: Iterable[pa.RecordBatch], *, key: str, clock: Clock) -> SendResult:
    """Add messages to ``main``. A disabled queue is no error for the sender (spec SB-19): its messages wait in ``transmission``.

    :param batches: columns by name, as in ``SENT``; ``body`` is needed (bytes or text), all others are optional. Other columns of a message
        (a message that is sent again begins anew: with a new lookup id, and counts of 0) are refused unless they are null. Where there is a column
        ``ERROR``, the messages that it says something of go to ``poison``.
    :param key: a second send with the same key sends nothing.
    Raises InputError or MessageTooLargeError; then nothing was sent.
    """
    sent = table.append(_made(batches, partial(masking_of, table)), check_key(key), clock.now(), of_source=True)
    return SendResult(table.name, sent.messages, sent.first_lookup_id, sent.repeated, sent.held, sent.malformed)


def masking_of(table: QueueTable) -> Masking | None:
    """Return what a queue hides."""
    return Masking.recorded(table.snapshot().control.desk)


def _made(batches: Iterable[pa.RecordBatch], masking: Callable[[], Masking | None]) -> Iterator[pa.RecordBatch]:
    made = partial(as_messages, masking=masking)
    for batch in batches:
        if ERROR in batch.schema.names:
            yield from map(made, alone(batch, made, is_body=True))
        else:
            yield checked(batch)


def messages_to_batches(bodies: Iterable[bytes | str], size: int = 10_000) -> Iterator[pa.RecordBatch]:
    """Return batches of messages from bare bodies. Raises InputError for text that UTF-8 cannot hold, and for one body where a list is expected."""
    check_several(bodies)
    return _batches_of(bodies, size)


def _batches_of(bodies: Iterable[bytes | str], size: int) -> Iterator[pa.RecordBatch]:
    chunk: list[bytes] = []
    held = 0
    for number, body in enumerate(bodies):
        chunk.append(utf8(body, f"messages[{number}]"))
        held += len(chunk[-1])
        if len(chunk) >= size or held >= _BATCH_BYTES:
            yield pa.record_batch({"body": pa.array(chunk, pa.binary())})
            chunk, held = [], 0
    if chunk:
        yield pa.record_batch({"body": pa.array(chunk, pa.binary())})


def as_messages(records: pa.RecordBatch, masking: Callable[[], Masking | None] = lambda: None) -> pa.RecordBatch:
    """Return records as messages: those with an ``ERROR``, without a body or with one that is too large have a ``last_error``.

    What are messages already stays what it is. Raises InputError.

    :param masking: returns what errors do not have; called where there are some.
    """
    if "last_error" in records.schema.names:
        return records
    records, errors = _errors(records)
    made = checked(records.select([name for name in records.schema.names if name not in {ERROR, NO_BODY}]))
    if errors.count(None) == len(errors):
        return made
    hidden = masking()
    failures = [None if error is None else _failure(error, made, row, hidden) for row, error in enumerate(errors)]
    cells = [None if failure is None else error_cell(failure) for failure in failures]
    made = made.append_column("last_error", pa.array(cells, message_schema().field("last_error").type))
    reasons = [None if failure is None else f"MalformedError: {failure.text}"[:_TEXT].partition("\n")[0] for failure in failures]
    return made.append_column("reason", pa.array(reasons, pa.string()))


def _failure(error: str, messages: pa.RecordBatch, row: int, masking: Masking | None) -> Failure:
    """Return what is wrong with a record, without hidden values. Its place in a file is none."""
    if masking is not None:
        body, properties = (messages.column(name)[row].as_py() if name in messages.schema.names else None for name in ("body", "properties"))
        place = "".join(_PLACE.findall(error))
        error = place + masking.values(body or b"", dict(properties or ())).hide(error.removeprefix(place))
    return Failure(FailureKind.UNREADABLE, "MalformedError", error[:_TEXT])


def _errors(records: pa.RecordBatch) -> tuple[pa.RecordBatch, list[str | None]]:
    """Return records whose bodies a queue can hold, and what is wrong with each."""
    errors: list[str | None] = [None] * records.num_rows
    if ERROR in records.schema.names:
        errors = cast("list[str | None]", records.column(ERROR).to_pylist())
    if "body" not in records.schema.names:
        return records, errors
    bodies = cast("pa.BinaryArray", records.column("body").cast(pa.binary()))
    if not bodies.null_count and (pc.max(pc.binary_length(bodies)).as_py() or 0) <= MAX_BODY_BYTES:
        return records, errors
    fit: list[bytes] = []
    for number, body in enumerate(bodies.to_pylist()):
        if body is None:
            errors[number] = errors[number] or "the record has no body: it is null"
        elif len(body) > MAX_BODY_BYTES:
            errors[number] = (
                errors[number] or f"the record has {len(body):,} bytes; at most {MAX_BODY_BYTES:,} are allowed. These are the first of them"
            )
        fit.append((body or b"")[:MAX_BODY_BYTES])
    return records.set_column(records.schema.get_field_index("body"), "body", pa.array(fit, pa.binary())), errors


def checked(batch: pa.RecordBatch, columns_given: Collection[str] = SENT) -> pa.RecordBatch:
    """Return the batch with the columns' right types, or raise an error that names the column."""
    names = set(batch.schema.names)
    if "body" not in names:
        raise InputError(f"The messages have no column 'body' (columns: {sorted(names)}). Map one: body='<column>'.")
    if len(names) < len(batch.schema.names):
        raise InputError(f"The messages have a column twice: {batch.schema.names}. Every column of a message has one name.")
    schema = message_schema()
    columns: dict[str, pa.Array[Any]] = {}
    for name in names:
        if name not in schema.names:
            raise InputError(f"Column {name!r} is not a column of a message; expected some of {schema.names}.")
        column, wanted = batch.column(name), schema.field(name).type
        if name not in columns_given:
            _refuse_values(name, column)
            continue
        try:
            columns[name] = column if column.type == wanted else column.cast(wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InputError(f"Column {name!r} has type {column.type}; a message needs {wanted}: {error}. Cast it before sending.") from error
    _check_sizes(cast("pa.BinaryArray", columns["body"]))
    if "properties" in columns:
        _refuse_reserved(columns["properties"])
    return check_priorities(pa.record_batch(list(columns.values()), names=list(columns)), "priority")


def _refuse_values(name: str, column: pa.Array[Any]) -> None:
    """Raise InputError for a value that the store itself gives: counts that a sender makes up would end a message before its time, or never."""
    given = len(column) - column.null_count
    if given:
        raise InputError(
            f"Column {name!r} has values in {given} of {len(column)} rows, and the queue gives them itself: a message begins with a new lookup id, "
            f"and counts of 0. A sender gives {', '.join(SENT)}. Leave the column out, or put what handlers should see into properties; nothing was "
            "sent."
        )


def _refuse_reserved(properties: pa.Array[Any]) -> None:
    """Raise InputError for properties that only the product sets: the envelope of a dialog, the edits of people, where a message leaves for."""
    names = cast("pa.MapArray[Any, Any]", properties).keys
    begun = cast("list[str]", pc.unique(pc.filter(names, pc.starts_with(names, OWN_PROPERTIES))).to_pylist())
    for own in filter(is_reserved, begun):
        forged = len(properties) - pc.map_lookup(properties, own, "first").null_count
        if forged:
            raise InputError(
                f"Property {own!r} has a value in {forged} of {len(properties)} messages; names that begin with {OWN_PROPERTIES!r} are the product's "
                f"own{', and only conversations set this one' if own == DIALOG else ''}. Rename the property or leave it out; nothing was sent."
            )


def _check_sizes(bodies: pa.BinaryArray) -> None:
    if bodies.null_count:
        raise InputError(f"Column 'body' is null in {bodies.null_count} rows. A message may be empty (b'') but not null: filter or fill these rows.")
    largest = pc.max(pc.binary_length(bodies)).as_py() or 0
    if largest > MAX_BODY_BYTES:
        raise MessageTooLargeError(
            f"A message body has {largest} bytes; at most {MAX_BODY_BYTES} are allowed. Nothing was sent. "
            "Store the payload elsewhere and send its address."
        )
