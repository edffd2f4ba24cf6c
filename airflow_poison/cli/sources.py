"""Where messages that are sent come from: files of lines, JSON lines, CSV, Parquet, and messages that were saved."""

from __future__ import annotations

import base64
import codecs
import csv
import functools
import io
import json
import sys
from contextlib import nullcontext, suppress
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from airflow_poison.core.errors import InputError
from airflow_poison.core.mapping import check_named_once
from airflow_poison.core.schema import DIALOG, is_reserved

if TYPE_CHECKING:
    from collections.abc import Iterator

_BY_SUFFIX = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
NOTHING = "Nothing was sent."
_ROWS = 10_000
"""Of a Parquet file, in memory at a time."""


def format_of(place: str) -> str:
    """Return the format that a file's name says."""
    return _BY_SUFFIX.get(Path(place).suffix.lower(), "lines")


def rows(place: str, form: str, numbers: tuple[str, ...]) -> Iterator[object]:
    """Yield what a file holds: bare bodies of lines, else dicts.

    :param place: ``-`` is standard input.
    :param numbers: columns that are numbers also where the format has only text.
    Raises InputError, and OSError for a file that cannot be read.
    """
    with nullcontext(sys.stdin.buffer) if place == "-" else Path(place).open("rb") as file:
        match form:
            case "lines":
                lines = (line.removesuffix(b"\n").removesuffix(b"\r") for line in file)
                yield from (line.removeprefix(codecs.BOM_UTF8) if number == 0 else line for number, line in enumerate(lines))
            case "jsonl":
                yield from (row for _, row in _json_lines(place, file))
            case "csv":
                yield from _csv(place, file, numbers)
            case "parquet":
                yield from _parquet(place, file)
            case _:
                yield from (_saved(place, number, row) for number, row in _json_lines(place, file))


def _json_lines(place: str, file: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = _parsed(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place}, line {number}: no JSON: {error}. {NOTHING}") from error
        if not isinstance(row, dict):
            kind = type(row).__name__
            raise InputError(f"{place}, line {number}: expected a JSON object, not {kind}; --format lines sends lines as they are. {NOTHING}")
        yield number, row


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError for a name that it has twice: one of the two values would be lost."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(name for name in names if names.count(name) > 1)!r} is there twice in one object")
    return made


def _no_number(name: str) -> object:
    raise ValueError(f"JSON has no {name}; write null or a text")


_parsed = functools.partial(json.loads, object_pairs_hook=_object, parse_constant=_no_number)


def _csv(place: str, file: IO[bytes], numbers: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        reader = csv.DictReader(text, strict=True)
        check_named_once(reader.fieldnames or (), f"{place}, line {max(1, reader.line_num)}")
        for row in reader:
            if None in row or None in row.values():
                raise InputError(f"{place}, line {reader.line_num}: expected {len(reader.fieldnames or ())} cells, as its first line has. {NOTHING}")
            yield row | {name: _number(row[name]) for name in numbers if name in row}
    except csv.Error as error:
        raise InputError(f"{place}, line {reader.line_num}: no CSV in UTF-8: {error}. {NOTHING}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{place}{_first_not_utf8(file)}: no CSV in UTF-8: {error}. {NOTHING}") from error
    finally:
        text.detach()


def _first_not_utf8(file: IO[bytes]) -> str:
    """Return ", line 7" for the first line that is no UTF-8; nothing where the file cannot be read again."""
    if not file.seekable():
        return ""
    file.seek(0)
    for number, line in enumerate(file, 1):
        try:
            line.decode()
        except UnicodeDecodeError:
            return f", line {number}"
    return ""


def _number(text: str) -> object:
    """Return a cell's number; nothing for an empty cell, and the text itself when it is none, so that it is refused by its own name."""
    if not text.strip():
        return None
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _parquet(place: str, file: IO[bytes]) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_poison.core.store.table.row_groups import streamed

    try:
        with pq.ParquetFile(file if file.seekable() else io.BytesIO(file.read())) as parquet:
            check_named_once(parquet.schema_arrow.names, place)
            for batch in streamed(parquet, _ROWS):
                for row in batch.to_pylist():
                    yield {name: _plain(value) for name, value in row.items()}
    except pa.ArrowInvalid as error:
        raise InputError(f"{place}: no Parquet: {error}. {NOTHING}") from error


def _plain(value: object) -> object:
    """Return a value that JSON has: instants, dates and decimal numbers as text."""
    match value:
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return str(value)
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case _:
            return value


SAVED = ("message_id", "priority", "group_id", "conversation_id", "message_type")
"""The parts of a saved message that are sent again as they were, beside its body, its properties and the end of its time to live."""


def _part(row: dict[str, Any], name: str) -> object:
    wanted: type = int if name == "priority" else str
    if not isinstance(row.get(name), wanted | None):
        raise TypeError(f"{name}={row[name]!r}, expected {wanted.__name__} or null")
    return row.get(name)


def _given(properties: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the properties of a saved message that are its sender's: edits by people were those of the message that was removed."""
    return ((name, value) for name, value in properties.items() if name == DIALOG or not is_reserved(name))


def _saved(place: str, number: int, row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a message that ``remove --save`` has written. Raises InputError."""
    try:
        body = base64.b64decode(row["body"], validate=True) if row["body_encoding"] == "base64" else row["body"].encode()
        expires_at = row.get("expires_at")
        return {
            "body": body,
            **{name: _part(row, name) for name in SAVED},
            "properties": [(str(name), str(value)) for name, value in _given(row.get("properties") or {})],
            "expires_at": datetime.fromisoformat(expires_at) if expires_at else None,
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{place}, line {number}: not a message as 'remove --save' writes it ({type(error).__name__}: {error}). {NOTHING}"
        ) from error
