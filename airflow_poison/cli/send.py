"""``airflow poison send``: put messages into a queue, without a JVM."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.cli import values
from airflow_poison.cli.command import (
    INTERRUPTED,
    NO,
    POLICY,
    QUEUE,
    REASON,
    WHERE,
    Argument,
    command,
    making_the_queue,
    option,
    queue_of,
    say,
    several,
    switch,
    wrong_usage,
)
from airflow_poison.cli.terminal import messages, report
from airflow_poison.cli.values import given_policy

if TYPE_CHECKING:
    from argparse import Namespace

    import pyarrow as pa

    from airflow_poison.queue import Queue
    from airflow_poison.sources.source import Source
    from airflow_poison.values.mapping import ColumnMapping

_PARTS = ("body", "group", "priority", "properties", "message_id", "message_type", "conversation", "expires_after")
_FIXED = {"group": "group_id", "conversation": "conversation_id", "message_type": "message_type", "priority": "priority"}
"""Options whose value is the same for every message, and the column that it goes to."""
_FORMATS = ("lines", "json", "csv", "parquet", "saved")


@command(
    "send",
    QUEUE,
    Argument(("bodies",), {"metavar": "BODY", "nargs": "*", "help": "messages, one argument each"}),
    option("--file", "FILE", "send what is in this file, - reads standard input"),
    option(
        "--format",
        "FORMAT",
        "lines, json (a value on each line, or a document), csv, parquet; of --file also saved, and of a source whole (default: by the file's "
        "name, else lines)",
        completes=(*_FORMATS, "whole"),
    ),
    option("--delimiter", "CHARACTER", r"of CSV: what is between two cells (default: a comma); \t is a tab"),
    option("--encoding", "ENCODING", "of lines, JSON lines and CSV where no byte order mark says another one, for example latin-1 (default: utf-8)"),
    option(
        "--header",
        "LINE",
        "of CSV: the number of the line that names the columns (default: the first that is not blank); or the names, for example id,name, where the "
        "file has none",
    ),
    option(
        "--source",
        "SOURCE",
        "send what is new in a source since it was taken last: a pattern of files ('/landing/*.json', 's3://bucket/landing/*.csv'), or MODULE:NAME "
        "of a source, for example shop.feeds:bookings",
    ),
    option("--max-messages", "N", "of a source: so many at most, as far as it can stop there"),
    option("--backfill", "FROM..TO", "of a source: what lies between two places, whatever was taken before; the position stays"),
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

    Send messages in one commit, all or none, without a JVM. Exit code 0: sent, sent before with this key, or nothing is new, 2: nothing was sent.
    """
    if args.source is not None:
        _take(args)
        return
    for name in ("max_messages", "backfill"):
        if getattr(args, name) is not None:
            raise wrong_usage(f"--{name.replace('_', '-')}: expected with --source.")
    from airflow_poison.passes.runs import run_key
    from airflow_poison.passes.send import send as verb

    if args.resend and args.send_key is None:
        raise wrong_usage("--resend: expected with --send-key; without a key every send is a new one.")
    values.named("--send-key", args.send_key)
    batches, queue = _batches(args, values.now()), _declared(args)
    named = args.send_key if args.send_key is not None else uuid.uuid4().hex
    key = run_key(queue.table.uri, named, *([uuid.uuid4().hex] if args.resend else []))
    try:
        sent = verb(queue.table, batches, key=key, clock=queue.clock)
    except KeyboardInterrupt:
        again = f"; run it again with --send-key {named}: it sends only what was not sent" if not args.resend else ""
        say("interrupted", f"all messages were sent, or none{again}.")
        raise SystemExit(INTERRUPTED) from None
    last = sent.first_lookup_id + sent.sent - 1
    ids = f"lookup id {last}" if sent.sent == 1 else f"lookup ids {sent.first_lookup_id} to {last}"
    count = messages(sent.sent)
    lines = [f"Sent {count} to {queue.name}{f', {ids}' if sent.sent else ''}."]
    if sent.repeated:
        lines = [f"An earlier send with this key has sent {count} to {queue.name}, {ids}; nothing was sent now."]
    if sent.malformed and not sent.repeated:
        lines.append(f"Malformed, in poison with their errors: {messages(sent.malformed)}.")
    if sent.held:
        lines.append(f"The queue was disabled: held back until it is enabled: {messages(sent.held)}.")
    report(args.output, sent.to_dict(), *lines)


def _declared(args: Namespace) -> Queue:
    """Return the queue, which a policy makes when it is missing."""
    policy = given_policy(args)
    queue = queue_of(args)
    with making_the_queue():
        queue.declare(policy, run="the command line")
    return queue


def _take(args: Namespace) -> None:
    from airflow_poison.passes.runs import run_key

    if args.bodies or args.file is not None:
        raise wrong_usage("--source: expected alone; what is sent comes from BODY, from --file or from a source.")
    if (fixed := [name for name in (*_FIXED, "property") if getattr(args, name)]) != []:
        raise wrong_usage(f"--{fixed[0].replace('_', '-')}: the same for every message is not for sources; map columns with --map.")
    limit = None if args.max_messages is None else values.whole("--max-messages", args.max_messages, 1)
    source = source_of(args)
    mapping, queue = _mapping(args, "json"), _declared(args)
    named = args.send_key if args.send_key is not None else uuid.uuid4().hex
    key = run_key(queue.table.uri, named, *([uuid.uuid4().hex] if args.resend else []))
    taken = queue.take(source, key=key, mapping=mapping, limit=limit, between=_between(args.backfill))
    lines = [f"Took {taken.what} of {taken.source}: {messages(taken.sent)} to {queue.name}."]
    if taken.repeated:
        lines = [f"An earlier send with this key has taken {messages(taken.sent)} from {taken.source}; nothing was taken now."]
    elif not taken.what:
        lines = [f"Nothing is new in {taken.source}."]
    if taken.malformed:
        lines.append(f"Malformed, in poison with their errors: {messages(taken.malformed)}.")
    if taken.held:
        lines.append(f"The queue was disabled: held back until it is enabled: {messages(taken.held)}.")
    lines += [f"Passed over: {sentence}." for sentence in taken.passed_over]
    report(args.output, taken.to_dict(), *lines, f"Now: {taken.position}.")


def source_of(args: Namespace) -> Source:
    """Return the source that was named. Raises InputError, SettingError."""
    from airflow_poison.cli.sources import format_of
    from airflow_poison.sources.files import Files
    from airflow_poison.sources.readers import FORMATS
    from airflow_poison.sources.source import Source

    if args.source.startswith("/") or "://" in args.source:
        form = format_of("--source", args.source, getattr(args, "format", None), FORMATS)
        return Files(args.source, format=form, **_layout(args))
    for name in ("format", *_LAYOUT):
        if getattr(args, name, None) is not None:
            raise wrong_usage(f"--{name}: expected with a pattern of files; a source that is named says itself what it reads.")
    values.importable_here()
    whole = Path.cwd() / args.source
    found = values.imported("--source", args.source, f"shop.feeds:bookings, or a pattern of files by their whole path, such as {whole}")
    if not isinstance(found, Source):
        raise wrong_usage(f"--source {args.source}: expected a source (Files, Kafka, DeltaChanges, Jdbc …), not {type(found).__name__}.")
    return found


_LAYOUT = ("delimiter", "encoding", "header")


def _layout(args: Namespace) -> dict[str, Any]:
    """Return how files are written, as far as it was given. Settings of another format are refused by Layout, by their names."""
    given = {name: getattr(args, name) for name in _LAYOUT if getattr(args, name, None) is not None}
    if given.get("delimiter") == r"\t":
        given["delimiter"] = "\t"
    if (header := given.get("header")) is not None:
        given["header"] = int(header) if header.isdecimal() else tuple(header.split(","))
    return given


def _between(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    start, dots, end = text.partition("..")
    if not (start and dots and end):
        raise wrong_usage(f"--backfill {text}: expected FROM..TO, two places in the source's own words.")
    return start, end


@command(
    "reset-position",
    QUEUE,
    Argument(("source",), {"metavar": "SOURCE", "help": "the source's name, as show prints it"}),
    REASON,
    *WHERE,
)
def reset_position(args: Namespace) -> None:
    """Have a source begin anew.

    Forget how far a source was taken into a queue: the next send takes it from its beginning. What is in the queue stays. Exit code 0: forgotten,
    1: the queue has no such source, 2: it could not be done.
    """
    queue = queue_of(args)
    known = [each.source for each in queue.positions()]
    done = queue.reset_position(args.source)
    text = f"The next send takes {args.source} into {queue.name} from its beginning."
    if not done:
        text = f"Nothing was taken from {args.source} into {queue.name}; known are: {', '.join(known) or 'no sources'}."
    report(args.output, {"queue": queue.name, "source": args.source, "reset": done}, text)
    if not done:
        raise SystemExit(NO)


def _batches(args: Namespace, now: datetime) -> Iterator[pa.RecordBatch]:
    """Return the messages, lazily. Raises InputError for options that do not fit together."""
    from airflow_poison.cli import sources
    from airflow_poison.sources.readers import Layout
    from airflow_poison.values.mapping import expires_at, rows_to_batches

    if bool(args.bodies) == (args.file is not None):
        raise wrong_usage("expected either BODY, one argument for each message, or --file FILE (- reads standard input).")
    if args.bodies and (args.format or args.map or _layout(args)):
        raise wrong_usage("--format, --delimiter, --encoding, --header and --map: expected with --file; bodies that are arguments have no columns.")
    form = sources.format_of("--file", args.file or "-", args.format, _FORMATS)
    mapping = _mapping(args, form)
    fixed = _fixed(args, mapping)
    if isinstance(mapping.expires_after, timedelta):
        fixed["expires_at"] = expires_at(now, mapping.expires_after.total_seconds(), mapping.expires_after)
        mapping = replace(mapping, expires_after=None)
    if args.bodies:
        return _constant(rows_to_batches(map(os.fsencode, args.bodies), mapping, now), fixed)
    if form == "saved":
        if _layout(args):
            raise wrong_usage("--delimiter, --encoding and --header: expected with lines, json and csv.")
        return _constant(_saved(sources.saved(args.file)), fixed)
    layout = Layout(form, **_layout(args))
    return _constant(sources.batches(args.file, layout, mapping, now), fixed)


def _mapping(args: Namespace, form: str) -> ColumnMapping:
    from airflow_poison.values.mapping import ColumnMapping

    parts: dict[str, Any] = {}
    for part, column in values.pairs("--map", args.map or []).items():
        name = values.one_of("--map", part, _PARTS)
        columns = tuple(filter(None, column.split(",")))
        if not columns or (len(columns) > 1 and name not in {"body", "properties"}):
            raise wrong_usage(f"--map {part}={column}: expected one column; body and properties can have several, with commas between them.")
        parts[name] = columns if name == "properties" or len(columns) > 1 else columns[0]
    if parts and form in {"lines", "saved"}:
        raise wrong_usage(f"--map: expected with columns; a file of {form} has none. --format json, csv or parquet has.")
    if args.expires_after is not None:
        if "expires_after" in parts:
            raise wrong_usage("--expires-after: the same part is mapped to a column.")
        parts["expires_after"] = values.duration("--expires-after", args.expires_after)
    return ColumnMapping(**parts)


def _fixed(args: Namespace, mapping: ColumnMapping) -> dict[str, object]:
    """Return the columns that are the same for every message. Raises InputError."""
    from airflow_poison.values.mapping import HIGHEST_PRIORITY

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

    from airflow_poison.values.schema import message_schema

    for batch in batches:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for name, value in fixed.items():
            columns[name] = pa.array([value] * batch.num_rows, message_schema().field(name).type)
        yield pa.record_batch(list(columns.values()), names=list(columns))


def _saved(rows: Iterator[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    """Yield batches of rows that have the columns of a message already."""
    import pyarrow as pa

    from airflow_poison.cli import sources
    from airflow_poison.values.mapping import BATCH
    from airflow_poison.values.schema import message_schema

    while chunk := list(islice(rows, BATCH)):
        schema = pa.schema([message_schema().field(name) for name in ("body", *sources.SAVED, "properties", "expires_at")])
        try:
            yield pa.RecordBatch.from_pylist(chunk, schema=schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise wrong_usage(f"a saved message has a part of a wrong type: {error}. {sources.NOTHING}") from error
