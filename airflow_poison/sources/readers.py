"""Readers of files: one for each format, for every door. What a file holds comes out as messages and malformed records, and nothing is left out.

A reader counts what it has read: every line is a part of exactly one record, or is blank, or is the header. A record that cannot be read is malformed
(the column ``ERROR``), with the number of its line and its bytes; its neighbours are read. What ends a file early (a truncated gzip, a broken
Parquet file) is one malformed record more. Only errors of the disk end a reader.
"""

from __future__ import annotations

import codecs
import io
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from airflow_poison.sources.csv_rows import CsvRows, twice_named
from airflow_poison.sources.source import ERROR
from airflow_poison.sources.text_lines import BYTES, PATH, ROWS, WIDTHS, Bodies, Lines, Long, check_count, one_line, opened, raise_of_the_disk
from airflow_poison.values.errors import ConservationError, MalformedError, SettingError
from airflow_poison.values.json_text import syntax_error, written
from airflow_poison.values.schema import MAX_BODY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    import pyarrow.parquet as pq

FORMATS = ("json", "lines", "csv", "parquet", "whole")
_ASCII = bytes(range(128))


@dataclass(frozen=True, slots=True)
class Layout:
    """How files are written. Raises SettingError.

    :param format: one of ``FORMATS``.
    :param delimiter: of CSV: one character between two cells.
    :param encoding: of ``json``, ``lines`` and ``csv`` where no byte order mark says another one.
    :param header: of CSV: True: the first line that is not blank names the columns; the number of the line that does, from 1 on; or their names,
        where the file has none.
    """

    format: str = "json"
    delimiter: str = ","
    encoding: str = "utf-8"
    header: bool | int | Sequence[str] = True

    def __post_init__(self) -> None:
        """Refuse what no file is written in."""
        if self.format not in FORMATS:
            raise SettingError("format", self.format, ", ".join(FORMATS))
        if not isinstance(self.delimiter, str) or len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise SettingError("delimiter", self.delimiter, "one character that is neither a quote nor a line end")
        object.__setattr__(self, "encoding", _codec_name(self.encoding))
        object.__setattr__(self, "header", _header(self.header))
        if self.format != "csv":
            for setting, default in (("delimiter", ","), ("header", True)):
                if getattr(self, setting) != default:
                    raise SettingError(setting, getattr(self, setting), f"with format='csv'; files of {self.format} have none")
        if self.format in {"parquet", "whole"} and self.encoding != "utf-8":
            raise SettingError("encoding", self.encoding, f"with json, lines and csv; files of {self.format} are bytes")


def _codec_name(encoding: object) -> str:
    """Return Python's name of an encoding in which line ends, quotes and delimiters are ASCII, or units of UTF-16 or UTF-32. Raises SettingError."""
    allowed = "utf-8, utf-16, utf-32, or a character set that begins with ASCII, as latin-1 and cp1252"
    try:
        name = codecs.lookup(encoding).name if isinstance(encoding, str) else ""
        plain = name.removesuffix("-sig")
        if plain in WIDTHS:
            return f"{plain}-le"  # where no mark says it
        if plain[:6] in WIDTHS or plain == "utf-8":
            return plain
        if name and b"\\n\\u0041".decode(name) == "\\n\\u0041" and _ASCII.decode(name) == _ASCII.decode():
            return name
    except (LookupError, ValueError, TypeError) as error:
        raise SettingError("encoding", encoding, allowed) from error
    raise SettingError("encoding", encoding, allowed)


def _header(header: object) -> bool | int | tuple[str, ...]:
    allowed = "True for the first line, the number of a line from 1 on, or a sequence of different names of columns"
    if header is True or (isinstance(header, int) and header >= 1):
        return header
    if isinstance(header, str | bytes | int) or not isinstance(header, list | tuple):
        raise SettingError("header", header, allowed)
    names = tuple(header)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names) or ERROR in names:
        raise SettingError("header", header, allowed)
    return names


def records(name: str, layout: Layout, source: Path | IO[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield what a file holds, in batches: of bodies, or of columns (csv, parquet); malformed records have the column ``ERROR``.

    :param name: of the file, as users see it.
    :param source: where it lies, compressed as its ending says; or what is read, as it is.
    Raises OSError for what concerns the disk, never for what is in the file.
    """
    count = 0
    try:
        with opened(source) as content:
            for batch in _READERS[layout.format](name, content, layout):
                count += batch.num_rows
                yield batch
    except ConservationError:
        raise
    except Exception as error:  # noqa: BLE001  (libraries raise what they like for what is in a file)
        raise_of_the_disk(error)
        before = f" {count:,} records before that were taken." if count else ""
        yield malformed(name, _beginning(source), f"{name} cannot be read as {layout.format}: {one_line(error)}.{before}")


def malformed(name: str, content: bytes, error: str) -> pa.RecordBatch:
    """Return a file as one malformed record."""
    import pyarrow as pa

    return pa.record_batch(
        {
            "body": pa.array([content], pa.binary()),
            "message_id": pa.array([name]),
            "properties": pa.array([[(PATH, name)]], pa.map_(pa.string(), pa.string())),
            ERROR: pa.array([error], pa.string()),
        }
    )


def is_utf8(name: str) -> bool:
    """Whether a name of a file is UTF-8: others have a lone surrogate for each byte that is not."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _beginning(source: Path | IO[bytes]) -> bytes:
    if not isinstance(source, Path):
        return b""
    with source.open("rb") as content:
        return content.read(BYTES)


# Bodies: json, lines --------------------------------------------------------------------------------------------------


def _lines(name: str, content: Any, layout: Layout) -> Iterator[pa.RecordBatch]:
    """Yield each line as a body, also an empty one."""
    lines, found, number = Lines(content, layout.encoding, returns=False), Bodies(name), 0
    for number, line in enumerate(lines, 1):
        body, error = lines.body(line)
        if found.add(body, number, error):
            yield from found.rest()
    yield from found.rest()
    check_count(name, number, found.count)
    lines.finish(number)


def _json(name: str, content: Any, layout: Layout) -> Iterator[pa.RecordBatch]:
    """Yield each line that is not blank as a body. A line that is no JSON and holds carriage returns is as many lines."""
    lines, found, number, blank = Lines(content, layout.encoding, returns=None), Bodies(name), 0, 0
    for line in lines:
        read = _json_body(lines, line)
        pieces = [line] if read[1] is None or isinstance(line, Long) else lines.split(line)
        for piece in pieces:
            number += 1
            body, error = read if len(pieces) == 1 else _json_body(lines, piece)
            if error == _BLANK:
                blank += 1
            elif found.add(body, number, error):
                yield from found.rest()
    yield from found.rest()
    check_count(name, number, found.count + blank)
    lines.finish(number)


_BLANK = ""
"""What is wrong with a line that is no record."""


def _json_body(lines: Lines, line: bytes) -> tuple[bytes, str | None]:
    body, error = lines.body(line)
    body = body if isinstance(body, Long) else body.removesuffix(b"\r")  # the end of a line that was split there, or of the last one
    if error is not None or (why := syntax_error(body)) is None:
        return body, error
    return body, f"it is no JSON: {why}" if body.strip(b" \t\r\n") else _BLANK


# Columns: csv ---------------------------------------------------------------------------------------------------------


def _csv(name: str, content: Any, layout: Layout) -> Iterator[pa.RecordBatch]:
    """Yield rows, all cells text; an empty cell is null, and one of two quotes is empty text."""
    yield from CsvRows(name, content, layout).batches()


# Columns: parquet; and whole files ------------------------------------------------------------------------------------


def _parquet(name: str, content: Any, layout: Layout) -> Iterator[pa.RecordBatch]:
    del layout
    import pyarrow.parquet as pq

    from airflow_poison.store.table.row_groups import streamed

    seen = 0
    source = content if content.seekable() else io.BytesIO(content.read())
    with pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
        schema = _with_zones(file)
        names = file.schema_arrow.names
        if (twice := twice_named(names)) is not None:
            raise MalformedError(f"column {twice!r} is there twice; the columns are {', '.join(names)[:500]}")
        if ERROR in names:
            raise MalformedError(f"it has a column {ERROR!r}, which is reserved")
        for batch in streamed(file, ROWS):
            yield from _rows(name, batch if schema is None else batch.cast(schema), seen)
            seen += batch.num_rows
        if seen != file.metadata.num_rows:
            raise MalformedError(f"{name} has {seen:,} rows, and {file.metadata.num_rows:,} by its footer")


def _rows(name: str, batch: pa.RecordBatch, before: int) -> Iterator[pa.RecordBatch]:
    """Yield rows; one with values that its types do not have (text that is no UTF-8) is malformed.

    :param before: so many rows of the file are before them.
    """
    import pyarrow as pa

    if (wrong := _invalid(batch)) is None:
        yield batch
        return
    found, good = Bodies(name, "row"), list[int]()
    for number in range(batch.num_rows):
        row = batch.slice(number, 1)
        if (wrong := _invalid(row)) is None:
            good.append(number)
        elif found.add(_shown(row), before + number + 1, wrong):
            yield from found.rest()
    yield batch.take(pa.array(good, pa.int64()))
    yield from found.rest()


def _invalid(batch: pa.RecordBatch) -> str | None:
    import pyarrow as pa

    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            return f"column {name!r}: {one_line(error).partition(' at string index')[0]}"
    return None


def _shown(row: pa.RecordBatch) -> bytes:
    """Return a row as JSON; bytes that are no text are escaped, and what has no JSON is its text."""
    cells = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            value = column.cast(_as_bytes(column.type), safe=False)[0].as_py()
        except Exception as error:  # noqa: BLE001  (of any type, with any bytes in it)
            value = f"({one_line(error)})"
        cells[name] = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value if value is None else str(value)
    return written(cells).encode()


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.list_(_as_bytes(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(kind.field(at).name, _as_bytes(kind.field(at).type)) for at in range(kind.num_fields)])
    return kind


def _with_zones(file: pq.ParquetFile) -> pa.Schema | None:
    """Return the columns of a file that has INT96, as Spark and Impala write instants: Arrow takes it for what a clock shows. None: it has none."""
    import pyarrow as pa

    leaves = [file.schema.column(at).physical_type for at in range(len(file.schema))]
    unseen = iter(leaves)

    def zoned(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_map(kind):
            return cast("pa.DataType", pa.map_(zoned(kind.key_type), kind.item_field.with_type(zoned(kind.item_type))))
        if pa.types.is_nested(kind):
            inner = [field.with_type(zoned(field.type)) for field in (kind.field(at) for at in range(kind.num_fields))]
            return pa.struct(inner) if pa.types.is_struct(kind) else pa.list_(inner[0])
        return pa.timestamp("us", "UTC") if next(unseen) == "INT96" else kind

    return pa.schema([each.with_type(zoned(each.type)) for each in file.schema_arrow]) if "INT96" in leaves else None


def _whole(name: str, content: Any, layout: Layout) -> Iterator[pa.RecordBatch]:
    """Yield the file as one body, byte for byte."""
    del layout
    import pyarrow as pa

    body = bytes(content.read(MAX_BODY_BYTES + 1))
    size = len(body)
    while more := content.read(1 << 20):
        size += len(more)
    error = None if size <= MAX_BODY_BYTES else f"{name}: {Long.of(b'', size).error()}"
    yield malformed(name, body[:MAX_BODY_BYTES], "").set_column(3, ERROR, pa.array([error], pa.string()))


_READERS: Mapping[str, Callable[[str, Any, Layout], Iterator[pa.RecordBatch]]] = {
    "json": _json,
    "lines": _lines,
    "csv": _csv,
    "parquet": _parquet,
    "whole": _whole,
}
