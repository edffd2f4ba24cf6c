"""Where messages that are sent come from: files of lines, JSON lines, CSV, Parquet, and messages that were saved."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from airflow_poison.cli import values
from airflow_poison.cli.command import wrong_usage
from airflow_poison.sources.source import ERROR
from airflow_poison.values.errors import InputError
from airflow_poison.values.libraries import pa
from airflow_poison.values.schema import DIALOG, is_reserved
from airflow_poison.values.texts import is_utf8

if TYPE_CHECKING:
    from airflow_poison.sources.readers import Layout
    from airflow_poison.values.mapping import ColumnMapping

NOTHING = "Nothing was sent."


def format_of(option: str, place: str, given: str | None, known: Sequence[str]) -> str:
    """Return the format of a file, or of files with a pattern: the one that is given, else what the name says, else ``lines``. Raises InputError.

    :param known: the formats that can be read there.
    """
    if given is not None:
        return values.one_of("--format", given, known)
    from airflow_poison.sources.readers import format_of_name

    try:
        found = format_of_name(place.rpartition("/")[2]) or "lines"
    except ValueError as other:
        wanted = f"expected --format, one of {', '.join(known)}"
        raise wrong_usage(f"{option} {place}: {other} is the ending of no format that is read; {wanted}.") from other
    if found not in known:
        raise wrong_usage(f"{option} {place}: Spark alone reads files of {found}: receive --source, or name another --format: {', '.join(known)}.")
    return found


def batches(place: str, layout: Layout, mapping: ColumnMapping, now: datetime) -> Iterator[pa.RecordBatch]:
    """Yield what a file holds as messages: what ``Files`` makes of it, but that one malformed record refuses them all.

    :param place: ``-`` is standard input.
    :param mapping: without a time to live for all.
    Raises InputError, and OSError for a file that cannot be read.
    """
    from airflow_poison.sources.readers import records, shown_name
    from airflow_poison.sources.rows import to_messages

    done, shown = 0, shown_name(place)
    for batch in records(shown, layout, io.BytesIO(sys.stdin.buffer.read()) if place == "-" else Path(place)):
        _refuse_malformed(batch)
        if layout.format in {"csv", "parquet"}:
            made = to_messages(batch, mapping, now)
            _refuse_malformed(made, lambda number, done=done: f"row {done + number + 1:,} of {shown}: ")  # type: ignore[misc]  # a default
            made = made.drop_columns(ERROR)
        else:
            made = _of_bodies(batch, mapping, now)
        done += batch.num_rows
        yield made


def _of_bodies(batch: pa.RecordBatch, mapping: ColumnMapping, now: datetime) -> pa.RecordBatch:
    """Return bodies as messages, with the parts that a mapping takes out of their JSON."""
    from airflow_poison.sources.bodies import with_fields

    bodies = batch.select(["body"])
    if not mapping.columns():
        return bodies
    places = cast("list[list[tuple[str, str]]]", batch.column("properties").to_pylist())
    where = [f"{unit.removeprefix('file.')} {number} of {path}" for (_, path), (unit, number) in places]
    made = with_fields(bodies, replace(mapping, body=None), now)
    _refuse_malformed(made, lambda number: f"{where[number]}: ")
    if mapping.body is not None:
        chosen = [
            _chosen(body, mapping.body, place) for body, place in zip(cast("list[bytes]", bodies.column("body").to_pylist()), where, strict=True)
        ]
        made = made.set_column(made.schema.get_field_index("body"), "body", pa.array(chosen, pa.binary()))
    return made.drop_columns([ERROR] if ERROR in made.schema.names else [])


def _chosen(body: bytes, wanted: str | tuple[str, ...], where: str) -> bytes:
    """Return a field of a JSON object that is the body, or an object of several fields, each as it is written."""
    from airflow_poison.values.json_text import JsonError, Pairs, tree, values, written
    from airflow_poison.values.json_values import utf8

    try:
        values(body)  # no name twice
        fields = tree(body)
    except JsonError as error:
        raise InputError(f"{where}: {error}. {NOTHING}") from error
    if not isinstance(fields, Pairs):
        raise InputError(f"{where}: expected a JSON object, not {type(fields).__name__}. {NOTHING}")
    there = dict(fields)
    for name in (wanted,) if isinstance(wanted, str) else wanted:
        if name not in there:
            raise InputError(f"body={name!r}: {where} has no such field; its fields are {list(there)}. {NOTHING}")
    if not isinstance(wanted, str):
        return written(Pairs((name, there[name]) for name in wanted)).encode()
    text = there[wanted]
    if type(text) is not str:
        raise InputError(f"body={wanted!r}: {where} has no text there; a body is text. For JSON name several fields. {NOTHING}")
    return utf8(text, f"{where}: body={wanted!r}")


def _refuse_malformed(batch: pa.RecordBatch, where: Callable[[int], str] = lambda _number: "") -> None:
    if ERROR not in batch.schema.names:
        return
    for number, error in enumerate(batch.column(ERROR).to_pylist()):
        if error is not None:
            raise InputError(f"{where(number)}{error.removesuffix(NOTHING).rstrip(' .')}. {NOTHING}")


def saved(place: str) -> Iterator[dict[str, Any]]:
    """Yield the columns of messages that ``remove --save`` has written. Raises InputError, and OSError for a file that cannot be read."""
    for number, line in enumerate(_lines(place), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place}, line {number}: no JSON: {error}. {NOTHING}") from error
        yield _saved(place, number, row)


def _lines(place: str) -> Iterator[bytes]:
    """Yield the lines of a file, decompressed as its name says. Raises InputError for a broken one."""
    from airflow_poison.sources.text_lines import one_line, opened, raise_of_the_disk

    with opened(sys.stdin.buffer if place == "-" else Path(place)) as file:
        begun = list[bytes]()
        while True:
            try:
                block = file.read(1 << 20)
            except Exception as error:
                raise_of_the_disk(error)
                raise InputError(f"{place} cannot be decompressed: {one_line(error)}. {NOTHING}") from error
            *whole, rest = block.split(b"\n")
            for line in whole:
                yield b"".join([*begun, line])
                begun.clear()
            begun.append(rest)
            if not block:
                yield b"".join(begun)
                return


SAVED = ("message_id", "priority", "group_id", "conversation_id", "message_type")
"""The parts of a saved message that are sent again as they were, beside its body, its properties and the end of its time to live."""


def _part(row: dict[str, Any], name: str) -> object:
    wanted: type = int if name == "priority" else str
    if not isinstance(row.get(name), wanted | None):
        raise TypeError(f"{name}={row[name]!r}, expected {wanted.__name__} or null")
    return _text(name, row[name]) if isinstance(row.get(name), str) else row.get(name)


def _text(name: str, text: str) -> str:
    if not is_utf8(text):
        raise ValueError(f"{name}={text!r}, expected text that UTF-8 can hold: half of a surrogate pair is none")
    return text


def _given(properties: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the properties of a saved message that its sender has set, without those of later edits."""
    return ((name, value) for name, value in properties.items() if name == DIALOG or not is_reserved(name))


def _saved(place: str, number: int, row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a message that ``remove --save`` has written. Raises InputError."""
    if isinstance(row, dict) and row.get("body_cut"):
        raise InputError(
            f"{place}, line {number}: body_cut=true: only the beginning of the body's {row.get('body_bytes')} bytes is here, as commands show it. "
            f"Write the message with 'remove --save', which keeps all of it. {NOTHING}"
        )
    try:
        body = base64.b64decode(row["body"], validate=True) if row["body_encoding"] == "base64" else row["body"].encode()
        expires_at = row.get("expires_at")
        return {
            "body": body,
            **{name: _part(row, name) for name in SAVED},
            "properties": [(_text(name, name), _text(name, str(value))) for name, value in _given(row.get("properties") or {})],
            "expires_at": datetime.fromisoformat(expires_at) if expires_at else None,
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{place}, line {number}: not a message as 'remove --save' writes it ({type(error).__name__}: {error}). {NOTHING}"
        ) from error
