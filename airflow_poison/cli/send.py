"""``airflow poison send``: put messages into a queue, without a JVM."""

from __future__ import annotations

import os
import uuid
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow_poison.cli import values
from airflow_poison.cli.command import INTERRUPTED, POLICY, QUEUE, WHERE, Argument, command, option, say, several, switch, wrong_usage
from airflow_poison.cli.stores import opened_queue, system_clock
from airflow_poison.cli.terminal import messages, tell
from airflow_poison.cli.values import given_policy

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    import pyarrow as pa

    from airflow_poison.core.mapping import ColumnMapping

_PARTS = ("body", "group", "priority", "properties", "message_id", "message_type", "conversation", "expires_after")
_FIXED = {"group": "group_id", "conversation": "conversation_id", "message_type": "message_type", "priority": "priority"}
"""Options whose value is the same for every message, and the column that it goes to."""
_FORMATS = ("lines", "jsonl", "csv", "parquet", "saved")


@command(
    "send",
    QUEUE,
    Argument(("bodies",), {"metavar": "BODY", "nargs": "*", "help": "messages, one argument each"}),
    option("--file", "FILE", "send what is in this file, - reads standard input"),
    option("--format", "FORMAT", "of the file: lines, jsonl, csv, parquet or saved (default: by the file's name, else lines)", completes=_FORMATS),
    several(
        "--map",
        "PART=COLUMN",
        "which columns become which parts of a message: body=payload group=carrier priority=urgency properties=origin,dest message_id "
        "message_type conversation expires_after (default: the body is one JSON object of all columns)",
    ),
    option("--group", "GROUP", "group of every message"),
    option("--priority", "N", "priority of every message, 0 to 10 (default: 5)"),
    several("--property", "NAME=VALUE", "properties of every message"),
    option("--message-type", "TYPE", "type of every message"),
    option("--conversation", "ID", "conversation of every message"),
    option("--expires-after", "DURATION", "time to live of every message"),
    option("--send-key", "KEY", "names what is sent: a later send to the queue with the same key sends nothing"),
    switch("--resend", "send anew although the key was used before"),
    *POLICY,
    *WHERE,
)
def send(args: Namespace) -> None:
    """Put messages into a queue.

    Send messages in one commit, all or none, without a JVM. Exit code 0: sent, or sent before with this key, 2: nothing was sent.
    """
    from airflow_poison.core.passes.runs import run_key
    from airflow_poison.core.passes.send import send as verb

    clock = system_clock()
    if args.resend and args.send_key is None:
        raise wrong_usage("--resend: expected with --send-key; without a key every send is a new one.")
    values.named("--send-key", args.send_key)
    batches = _batches(args, clock.now())
    table = opened_queue(args, given_policy(args))
    named = args.send_key if args.send_key is not None else uuid.uuid4().hex
    key = run_key(table.uri, named, *([uuid.uuid4().hex] if args.resend else []))
    try:
        sent = verb(table, batches, key=key, clock=clock)
    except KeyboardInterrupt:
        again = f"; run it again with --send-key {named}: it sends only what was not sent" if not args.resend else ""
        say("interrupted", f"all messages were sent, or none{again}.")
        raise SystemExit(INTERRUPTED) from None
    last = sent.first_lookup_id + sent.sent - 1
    ids = f"lookup id {last}" if sent.sent == 1 else f"lookup ids {sent.first_lookup_id} to {last}"
    count = messages(sent.sent)
    told = [f"Sent {count} to {table.name}{f', {ids}' if sent.sent else ''}."]
    if sent.repeated:
        told = [f"An earlier send with this key has sent {count} to {table.name}, {ids}; nothing was sent now."]
    if sent.held:
        told.append(f"The queue was disabled: held back until it is enabled: {messages(sent.held)}.")
    tell(args.output, sent.to_dict(), *told)


def _batches(args: Namespace, now: datetime) -> Iterator[pa.RecordBatch]:
    """Return the messages, lazily. Raises InputError for options that do not fit together."""
    from airflow_poison.cli import sources
    from airflow_poison.core.mapping import rows_to_batches

    if bool(args.bodies) == (args.file is not None):
        raise wrong_usage("expected either BODY, one argument for each message, or --file FILE (- reads standard input).")
    if args.bodies and (args.format or args.map):
        raise wrong_usage("--format and --map: expected with --file; bodies that are arguments have no columns.")
    form = "lines" if args.file in {None, "-"} else sources.format_of(args.file)
    if args.format is not None:
        form = values.one_of("--format", args.format, _FORMATS)
    mapping = _mapping(args, form)
    fixed = _fixed(args, mapping)
    if form == "saved":
        return _constant(_saved(sources.rows(args.file, form, ())), fixed)
    numbers = tuple(column for column in (mapping.priority, mapping.expires_after) if isinstance(column, str))
    rows: Iterable[object] = map(os.fsencode, args.bodies) if args.bodies else sources.rows(args.file, form, numbers)
    return _constant(rows_to_batches(rows, mapping, now), fixed)


def _mapping(args: Namespace, form: str) -> ColumnMapping:
    """Return which columns become which parts. Raises InputError."""
    from airflow_poison.core.mapping import ColumnMapping

    parts: dict[str, Any] = {}
    for part, column in values.pairs("--map", args.map or []).items():
        name = values.one_of("--map", part, _PARTS)
        columns = tuple(filter(None, column.split(",")))
        if not columns or (len(columns) > 1 and name not in {"body", "properties"}):
            raise wrong_usage(f"--map {part}={column}: expected one column; body and properties can have several, with commas between them.")
        parts[name] = columns if name == "properties" or len(columns) > 1 else columns[0]
    if parts and form in {"lines", "saved"}:
        raise wrong_usage(f"--map: expected with columns; a file of {form} has none. --format jsonl, csv or parquet has.")
    if args.expires_after is not None:
        if "expires_after" in parts:
            raise wrong_usage("--expires-after: the same part is mapped to a column.")
        parts["expires_after"] = values.duration("--expires-after", args.expires_after)
    return ColumnMapping(**parts)


def _fixed(args: Namespace, mapping: ColumnMapping) -> Mapping[str, object]:
    """Return the columns that are the same for every message. Raises InputError."""
    from airflow_poison.core.mapping import HIGHEST_PRIORITY

    fixed: dict[str, object] = {}
    for part, column in _FIXED.items():
        if (value := getattr(args, part)) is not None:
            fixed[column] = values.whole("--priority", value, 0, HIGHEST_PRIORITY) if part == "priority" else value
            if getattr(mapping, part) is not None:
                raise wrong_usage(f"--{part.replace('_', '-')}: the same part is mapped to a column.")
    if args.property:
        fixed["properties"] = list(values.pairs("--property", args.property).items())
        if mapping.properties:
            raise wrong_usage("--property: properties are mapped to columns.")
    return fixed


def _constant(batches: Iterable[pa.RecordBatch], fixed: Mapping[str, object]) -> Iterator[pa.RecordBatch]:
    """Yield the batches with columns that are the same for every message, also in the place of their own."""
    import pyarrow as pa

    from airflow_poison.core.schema import message_schema

    for batch in batches:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for name, value in fixed.items():
            columns[name] = pa.array([value] * batch.num_rows, message_schema().field(name).type)
        yield pa.record_batch(list(columns.values()), names=list(columns))


def _saved(rows: Iterator[object]) -> Iterator[pa.RecordBatch]:
    """Yield batches of rows that have the columns of a message already."""
    import pyarrow as pa

    from airflow_poison.cli import sources
    from airflow_poison.core.mapping import BATCH
    from airflow_poison.core.schema import message_schema

    while chunk := list(islice(rows, BATCH)):
        schema = pa.schema([message_schema().field(name) for name in ("body", *sources.SAVED, "properties", "expires_at")])
        try:
            yield pa.RecordBatch.from_pylist(chunk, schema=schema)  # type: ignore[arg-type]  # they are dicts
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise wrong_usage(f"a saved message has a part of a wrong type: {error}. {sources.NOTHING}") from error
