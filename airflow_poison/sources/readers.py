"""Readers of files: one for each format, for every way in. What a file holds comes out as messages and malformed records, and nothing is left out.

A reader counts what it has read: every line is a part of exactly one record, or is blank, or is the header. A record that cannot be read is malformed
(the column ``ERROR``), with the number of its line and its bytes; its neighbours are read. What ends a file early (a truncated gzip, a broken
Parquet file) is one malformed record more. Only errors of the disk end a reader.

CSV: its rows. Arrow reads lines whose quotes leave no doubt, many at once; all others go through a tokenizer of our own, for which a broken record
has neighbours. Given a whole file, Arrow's reader and Python's drop rows, or end at the first broken one.
"""

from __future__ import annotations

import codecs
import io
import re
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from airflow_poison.sources.rows import shown
from airflow_poison.sources.source import ERROR
from airflow_poison.sources.text_lines import (
    BYTES,
    PATH,
    ROWS,
    WIDTHS,
    Bodies,
    Lines,
    Long,
    check_count,
    has_lone_returns,
    one_line,
    opened,
    raise_of_the_disk,
    texts_of,
)
from airflow_poison.store.row_groups import streamed
from airflow_poison.values.errors import ConservationError, MalformedError, SettingError
from airflow_poison.values.json_text import syntax_error, unlike_json
from airflow_poison.values.libraries import np, pa, pc, pq
from airflow_poison.values.mapping import field_named_twice
from airflow_poison.values.schema import MAX_BODY_BYTES
from airflow_poison.values.texts import counted, is_utf8

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    RowsOfBodies = Callable[[pa.Array[Any]], tuple[pa.RecordBatch, Sequence[int]]]

_RECORD_LINES = 1 << 20
"""A record has at most so many lines: each takes memory, also an empty one."""
_QUOTE = '"'
_FEED, _RETURN = b"\n\r"


_ENDINGS = {".json": "json", ".ndjson": "json", ".csv": "csv", ".parquet": "parquet", ".orc": "orc", ".avro": "avro"}
_OTHERS = re.compile(r"\.(xml|tsv|xlsx?|zip|tar|tgz|7z|pkl|arrow|feather|pdf)\b")


def format_of_name(name: str) -> str | None:
    """Return the format that the name of a file, or a pattern of names, says; None: none. Raises ValueError with an ending of what is not read."""
    found = next((form for ending, form in _ENDINGS.items() if ending in name.lower()), None)
    if found is None and (other := _OTHERS.search(name.lower())) is not None:
        raise ValueError(other[0])
    return found


def twice_named(names: Sequence[str]) -> str | None:
    """Return a name that stands twice among names of columns; None: none does."""
    return next((name for name, times in Counter(names).items() if times > 1), None)


@dataclass(slots=True)
class _Record:
    """A record of CSV.

    :param lines: it stands in, with their ends.
    :param number: of the first of them.
    :param size: of the part behind the first line, in bytes.
    :param cells: None: it cannot be read.
    :param error: what is wrong with it.
    """

    lines: list[bytes]
    number: int
    size: int = 0
    cells: list[str | None] | None = None
    error: str | None = None


class CsvRows:
    """The rows of a CSV file.

    A quote opens a cell only at the beginning of the cell; within, two quotes are one, and line ends are text. A record that breaks that is malformed
    in its first line alone: the lines that it has swallowed are read again. Until they are, a quote within an unquoted cell is an error, too, for it
    may be the end of a cell whose beginning was lost.
    """

    def __init__(self, name: str, content: Any, layout: Layout) -> None:
        self._name, self._layout = name, layout
        self._lines = Lines(content, layout.encoding, returns=True)
        self._texts, self._unread, self._again = self._lines.texts(joined=True), iter(list[bytes]()), deque[bytes]()
        self._text, self._at = b"", 0
        """Lines that are not cut yet, and where the first of them begins."""
        self._number = self._accounted = self._lines.before
        self.columns: tuple[str, ...] = ()
        self.unusable: str | None = None
        """Why the header names no columns; then each row is malformed."""
        self._cells: list[str | None] = []
        """Of the rows that are not yet given, one row behind the other."""
        self._empty_is_null = True
        """Whether an empty text among them is an empty cell, not one of two quotes."""
        self._bad = Bodies(name)
        self._held = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, and the malformed ones in batches of their own."""
        yield from self.take_header()
        yield from self._read_again()
        yield from self._one_by_one()
        while self._more():
            if text := self._take_text():
                rows = self._plain(text)
                if rows is None:
                    self._unread = iter(self._lines.cut(text, returns=True))
                else:
                    yield from self._filled()
                    yield from rows
            yield from self._one_by_one()
        yield from self._filled()
        yield from self._bad.rest()
        check_count(self._name, self._number, self._accounted)
        self._lines.finish(self._number)

    def _one_by_one(self) -> Iterator[pa.RecordBatch]:
        """Read the lines that are cut."""
        quote, codec, delimiter = _QUOTE.encode(self._lines.codec), self._lines.codec, self._layout.delimiter
        width = len(self.columns) if self.unusable is None else -1
        add, full, held = self._cells.extend, ROWS * max(width, 1), 0
        while (line := next(self._unread, None)) is not None:
            self._number += 1
            if quote not in line and type(line) is bytes:  # nearly all of them
                try:
                    text = line.decode(codec).rstrip("\r\n")
                except ValueError:
                    text = ""
                cells: list[Any] = text.split(delimiter)
                if len(cells) == width and text:
                    self._accounted += 1
                    add(cells if self._empty_is_null else [cell or None for cell in cells])
                    held += len(line)
                    if len(self._cells) >= full or held >= BYTES:
                        yield from self._filled()
                        held = 0
                    continue
            if (record := self._record(line)) is not None:
                yield from self._row(record)
            yield from self._read_again()

    def _plain(self, text: bytes) -> Iterator[pa.RecordBatch] | None:
        """Read whole lines at once by Arrow. None: each has to be looked at alone."""
        found = _at_once(text, self.columns, self._layout.delimiter) if self.unusable is None and self._lines.plain and self.columns else None
        return None if found is None else self._read_plain(text, *found)

    def _read_plain(self, text: bytes, rows: pa.Table, ends: NDArray[np.intp], odd: NDArray[np.intp]) -> Iterator[pa.RecordBatch]:
        """Yield rows, and read what is none; cut the lines behind them.

        :param ends: of their lines.
        :param odd: which of these are no rows.
        """
        before = self._number
        yield from rows.to_batches(max_chunksize=ROWS)
        for place in odd.tolist():
            self._number = before + place + 1
            if (record := self._record(text[ends[place - 1] if place else 0 : ends[place]])) is not None:
                yield from self._row(record)
        self._number = before + len(ends)
        self._accounted += len(ends) - len(odd)
        self._unread = iter(self._lines.cut(text[ends[-1] :], returns=True))

    def _more(self) -> bool:
        """Have lines that are not read yet, cut or not; return whether there are some."""
        while self._at == len(self._text):
            read = next(self._texts, None)
            if not isinstance(read, memoryview):
                self._unread = iter(read or ())
                return read is not None
            self._text, self._at = bytes(read), 0
        return True

    def _take_text(self) -> bytes:
        """Return the lines that are not cut yet."""
        text = self._text[self._at :]
        self._text, self._at = b"", 0
        return text

    def _read_again(self) -> Iterator[pa.RecordBatch]:
        """Read the lines that a record which cannot be read has swallowed."""
        while self._again:
            self._number += 1
            if (record := self._record(self._again.popleft(), doubtful=True)) is not None:
                yield from self._row(record)

    def _next(self) -> bytes | None:
        line = self._again.popleft() if self._again else next(self._unread, None)
        while line is None and self._more():
            if self._at < len(self._text):
                end = self._text.index(b"\n", self._at) + 1
                self._unread, self._at = iter(self._lines.cut(self._text[self._at : end], returns=True)), end
            line = next(self._unread, None)
        self._number += line is not None
        return line

    def _row(self, record: _Record) -> Iterator[pa.RecordBatch]:
        self._accounted += len(record.lines)
        error, cells = record.error, record.cells
        if error is None and self.unusable is not None:
            error = self.unusable
        if error is None and cells is not None and len(cells) != len(self.columns):
            has = f"{len(cells)} cell" + "s" * (len(cells) != 1)
            error = f"it has {has}, the header {len(self.columns)}; delimiter= and header= say how the file is written"
        if error is None and cells is not None:
            if self._empty_is_null and "" in cells:
                self._empty_is_null = False
                self._cells[:] = [cell or None for cell in self._cells]
            self._cells.extend(cells)
            self._held += len(record.lines[0]) + record.size
            if len(self._cells) >= ROWS * len(cells) or self._held >= BYTES:
                yield from self._filled()
        else:
            self._bad.add(self._bytes(record), record.number, error)
            if self._bad.is_full:
                yield from self._bad.rest()

    def _bytes(self, record: _Record) -> bytes:
        """Return what arrived, without the last line end; in UTF-8 where it can be decoded."""
        joined = b"".join(record.lines)
        if isinstance(record.lines[0], Long):
            return joined
        body, _ = self._lines.body(joined)
        return body

    def _filled(self) -> Iterator[pa.RecordBatch]:

        if self._cells:
            width = len(self.columns)
            columns = [pa.array(self._cells[number::width], pa.string()) for number in range(width)]
            if self._empty_is_null:
                columns = [pc.if_else(pc.equal(column, pa.scalar("")), pa.scalar(None, pa.string()), column) for column in columns]
            self._cells.clear()
            self._empty_is_null = True
            yield pa.record_batch(columns, names=list(self.columns))
        self._held = 0

    # The header -------------------------------------------------------------------------------------------------------

    def take_header(self) -> Iterator[pa.RecordBatch]:
        """Read what names the columns. A header that cannot be read is malformed, and so is each row then."""
        header = self._layout.header
        if isinstance(header, tuple):
            self.columns = header
            return
        first = header is True
        for _ in range(0 if first else cast("int", header) - 1):
            self._accounted += self._next() is not None
        while (line := self._next()) is not None:
            record = self._record(line, blank=lambda text: first and not text.strip())
            if record is None:
                continue
            if record.cells is None or record.error is not None:
                self.unusable = f"the header, line {record.number}, cannot be read: {record.error}"
                yield from self._row(record)
                return
            self._accounted += len(record.lines)
            self.columns = tuple(cell or "" for cell in record.cells)
            if (twice := twice_named(self.columns)) is not None:
                self.unusable = f"the header, line {record.number}, names column {twice!r} twice: {', '.join(self.columns)[:500]}"
            elif ERROR in self.columns:
                self.unusable = f"the header, line {record.number}, names column {ERROR!r}, which is reserved"
            return
        if not first and self._number:
            raise MalformedError(f"it has {counted(self._number, 'line', 'lines')}, and header={header!r} names a line behind them")

    # A record ---------------------------------------------------------------------------------------------------------

    def _record(self, line: bytes, blank: Callable[[str], bool] = lambda text: not text, *, doubtful: bool = False) -> _Record | None:
        """Return the record that begins with a line; None for a blank one, and for one that ends where the file could not be read further.

        :param doubtful: the line was a part of a record that could not be read.
        """
        record = _Record([line], self._number)
        if isinstance(line, Long):
            record.error = line.error()
        elif (text := self._decoded(line, record)) is not None:
            bare = text.rstrip("\r\n")
            if record.error is None and blank(bare):
                self._accounted += 1
                return None
            if _QUOTE in bare:
                return self._with_quotes(text, record, doubtful=doubtful)
            record.cells = [cell or None for cell in bare.split(self._layout.delimiter)]
        return record

    def _with_quotes(self, text: str, record: _Record, *, doubtful: bool) -> _Record | None:
        try:
            record.cells = self._quoted(text, record, doubtful=doubtful)
        except MalformedError as error:
            if error.args[0] == _NEVER_CLOSED and self._lines.is_broken:  # a part that cannot be read
                self._accounted += len(record.lines)
                return None
            self._again.extendleft(reversed(record.lines[1:]))
            self._number -= len(record.lines) - 1
            return _Record(record.lines[:1], record.number, error=str(error))
        return record

    def _decoded(self, line: bytes, record: _Record) -> str | None:
        """Return a line as text, and note in its record that it is not in the encoding; None: its cells are not known then."""
        try:
            return line.decode(self._lines.codec)
        except ValueError as error:
            record.error = record.error or self._lines.undecodable(error)
        try:
            return line.decode(self._lines.codec, "surrogateescape")
        except ValueError:
            return None

    def _quoted(self, line: str, record: _Record, *, doubtful: bool) -> list[str | None]:
        """Return the cells of a record with quotes, and add the lines on which it goes on to it. Raises MalformedError."""
        delimiter, cells, place = self._layout.delimiter, list[str | None](), 0
        while True:
            if line.startswith(_QUOTE, place):
                parts, begin = list[str](), place + 1
                while (end := _closing(line, begin)) < 0:
                    parts.append(line[begin:])
                    line, begin = self._goes_on(record), 0
                parts.append(line[begin:end])
                cells.append("".join(parts).replace('""', _QUOTE))
                place = end + 1
                if not line[place:].strip("\r\n"):
                    return cells
                if line[place] != delimiter:
                    raise MalformedError("text stands behind the quote that closes a cell")
                place += 1
                continue
            end = line.find(delimiter, place)
            cell = line[place:].rstrip("\r\n") if end < 0 else line[place:end]
            if doubtful and _QUOTE in cell:
                raise MalformedError("a quote stands within a cell, and an open quote before it was not understood")
            cells.append(cell or None)
            if end < 0:
                return cells
            place = end + 1

    def _goes_on(self, record: _Record) -> str:
        line = self._next()
        if line is None:
            raise MalformedError(_NEVER_CLOSED)
        record.lines.append(line)
        record.size += len(line)
        if isinstance(line, Long) or record.size > MAX_BODY_BYTES or len(record.lines) > _RECORD_LINES:
            raise MalformedError(f"a quote opens a cell that goes on for more than {MAX_BODY_BYTES:,} bytes or {_RECORD_LINES:,} lines")
        text = self._decoded(line, record)
        if text is None:
            raise MalformedError(f"a quote opens a cell with bytes that are no {self._lines.codec}")
        return text


_NEVER_CLOSED = "a quote opens a cell and is never closed"


def _closing(line: str, begin: int) -> int:
    """Return the place of the quote that closes a cell; -1: it is not on this line."""
    end = line.find(_QUOTE, begin)
    while end >= 0 and line.startswith(_QUOTE, end + 1):
        end = line.find(_QUOTE, end + 2)
    return end


def _at_once(text: bytes, columns: Sequence[str], delimiter: str) -> tuple[pa.Table, NDArray[np.intp], NDArray[np.intp]] | None:
    """Return the rows of whole lines of CSV in UTF-8, all cells text and an empty one null; where each line ends; and which lines are no rows.

    Without the last lines where a cell begins in them and goes on. None: Arrow may read a line in another way, as one with a quote that neither
    begins nor ends a cell, and is not one of two within.
    """
    if len(sign := delimiter.encode()) > 1 or has_lone_returns(text):
        return None
    data, width, odd = np.frombuffer(text, np.uint8), len(columns), np.empty(0, np.intp)
    lines = rows = np.flatnonzero(data == _FEED) + 1
    places = np.flatnonzero((data == _FEED) | (data == ord(sign))) + 1
    if has_quotes := _QUOTE.encode() in text:
        quotes = np.flatnonzero(data == ord(_QUOTE))
        rows, places = (each[np.searchsorted(quotes, each) % 2 == 0] for each in (lines, places))
        if len(quotes) % 2 and len(rows):  # a cell goes on behind the text
            return _at_once(text[: rows[-1]], columns, delimiter)
        longest, most = (np.diff(each, prepend=0).max(initial=0) for each in (rows, np.searchsorted(lines, rows) + 1))
        if not _are_regular(data, quotes, sign) or longest > MAX_BODY_BYTES or most > _RECORD_LINES:
            return None
    if len(places) != width * len(rows) or (places[width - 1 :: width] != rows).any():
        if has_quotes:
            return None
        odd = np.flatnonzero(np.diff(np.searchsorted(places, lines), prepend=-1) != width)
        kept = np.ones(len(lines), bool)
        kept[odd] = False
        text = data[np.repeat(kept, np.diff(lines, prepend=0))].tobytes()
    found = _by_arrow(text, columns, delimiter, newlines=len(rows) < len(lines))
    return None if found is None or found.num_rows < len(rows) - len(odd) else (found, lines, odd)  # it leaves out blank lines


def _by_arrow(text: bytes, columns: Sequence[str], delimiter: str, *, newlines: bool) -> pa.Table | None:
    """Return rows as Arrow reads them; None: they have bytes that are no UTF-8, or begin with a mark, which it leaves out.

    :param newlines: a cell has some.
    """
    from pyarrow import csv

    kinds = dict.fromkeys(columns, pa.string())
    reading = csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=list(columns))
    parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=newlines)
    converting = csv.ConvertOptions(column_types=kinds, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False)
    with suppress(pa.ArrowInvalid):
        return None if text.startswith(codecs.BOM_UTF8) else csv.read_csv(io.BytesIO(text), reading, parsing, converting)
    return None


def _are_regular(data: NDArray[np.uint8], quotes: NDArray[np.intp], sign: bytes) -> bool:
    """Whether each quote of whole lines begins or ends a cell, or is one of two within it."""
    if len(quotes) % 2:
        return False
    begins, ends = quotes[::2], quotes[1::2]
    before, behind = data[begins - 1], data[ends + 1]  # a text ends with a line feed: before the first cell is one, too
    twice = begins[1:] == ends[:-1] + 1
    opens, closes = (np.isin(each, (ord(sign), _FEED, _RETURN)) for each in (before, behind))
    opens[1:] |= twice
    closes[:-1] |= twice
    return bool(opens.all() and closes.all())


SPARKS = ("orc", "avro")
"""Formats that Spark alone reads: others read old dates, and instants that are far away, wrongly."""
_GREGORIAN, _STANDARD = -12_219_292_800, -2_208_988_800
"""1582-10-15, when the calendar changed, and 1900, before which Java had other zones than their local mean times; in seconds since 1970."""
FORMATS = ("json", "lines", "csv", "parquet", "whole", *SPARKS)
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
        if self.format in {"parquet", "whole", *SPARKS} and self.encoding != "utf-8":
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


def records(name: str, layout: Layout, source: Path | IO[bytes], rows: RowsOfBodies | None = None) -> Iterator[pa.RecordBatch]:
    """Yield what a file holds, in batches: of bodies, or of columns (csv, parquet); malformed records have the column ``ERROR``.

    :param name: of the file, as users see it.
    :param source: where it lies, compressed as its ending says; or what is read, as it is.
    :param rows: makes rows of bodies of JSON, and returns the places of others. Rows are yielded as they are, and records of the others alone, whose
        numbers may be wrong.
    Raises OSError for what concerns the disk, never for what is in the file.
    """
    count = 0
    try:
        with opened(source) as content:
            read = _READERS[layout.format] if rows is None else partial(_json, rows=rows)
            for batch in read(name, content, layout):
                count += batch.num_rows
                yield batch
    except ConservationError:
        raise
    except Exception as error:  # noqa: BLE001  (libraries raise what they like for what is in a file)
        raise_of_the_disk(error)
        before = f" {counted(count, 'record')} before that {'was' if count == 1 else 'were'} taken." if count else ""
        yield malformed(name, _beginning(source), f"{name} cannot be read as {layout.format}: {one_line(error)}.{before}")


def named_columns(layout: Layout, source: Path) -> tuple[str, ...]:
    """Return the columns that a CSV file names; none where it names none that can be used. Raises OSError."""
    try:
        with opened(source) as content:
            rows = CsvRows("", content, layout)
            for _ in rows.take_header():
                pass
            return () if rows.unusable else rows.columns
    except Exception as error:  # noqa: BLE001  (the same)
        raise_of_the_disk(error)
        return ()


def malformed(name: str, content: bytes, error: str) -> pa.RecordBatch:
    """Return a file as one malformed record."""
    return pa.record_batch(
        {
            "body": pa.array([content], pa.binary()),
            "message_id": pa.array([name]),
            "properties": pa.array([[(PATH, name)]], pa.map_(pa.string(), pa.string())),
            ERROR: pa.array([error], pa.string()),
        }
    )


def shown_name(path: str) -> str:
    """Return the name of a file as users see it: the path; a URI where the path is no UTF-8, or has a line end."""
    if "\n" not in path and is_utf8(path):
        return path
    return path.replace("\n", "%0A") if "://" in path else Path(path).absolute().as_uri()


def _beginning(source: Path | IO[bytes]) -> bytes:
    if isinstance(source, io.BytesIO):
        return source.getvalue()[:BYTES]
    if not isinstance(source, Path):
        return b""
    with source.open("rb") as content:
        return content.read(BYTES)


# Bodies: json, lines --------------------------------------------------------------------------------------------------


def _lines(name: str, content: Any, layout: Layout) -> Iterator[pa.RecordBatch]:
    """Yield each line as a body, also an empty one."""
    lines, found, number = Lines(content, layout.encoding, returns=False), Bodies(name), 0
    for block in lines.blocks():
        if (bodies := lines.bodies(block)) is not None:
            found.extend(bodies, number + 1)
        else:
            for place, line in enumerate(block, number + 1):
                body, error = lines.body(line)
                found.add(body, place, error)
        number += len(block)
        if found.is_full:
            yield from found.rest()
    yield from found.rest()
    check_count(name, number, found.count)
    lines.finish(number)


def _json(name: str, content: Any, layout: Layout, rows: RowsOfBodies | None = None) -> Iterator[pa.RecordBatch]:
    """Yield each line that is not blank as a body. A line that is no JSON and holds carriage returns is as many lines.

    Of a document, whose values have several lines, each value is a body, and of an array each element.

    :param rows: as of ``records``.
    """
    lines, found, blank = Lines(content, layout.encoding, returns=None), Bodies(name), 0
    if not lines.before and lines.begins_document():
        yield from _document(name, lines, rows)
        return
    number = lines.before
    for read in lines.texts(joined=rows is not None):
        if isinstance(read, memoryview):
            assert rows is not None, "they are joined"
            texts = texts_of(read)
            made, others = rows(texts)
            check_count(name, len(texts), made.num_rows + len(others))
            yield made
            block, bodies = [texts[place].as_py() for place in others], list[bytes]()
        else:
            block, bodies = read, lines.bodies(read) or []
        odd = unlike_json(bodies) if bodies else range(len(block))
        for behind, place in pairwise((-1, *odd, len(block))):
            plain = bodies[behind + 1 : place]
            found.extend(plain, number + 1)
            number += len(plain)
            for body, error in _json_bodies(lines, block[place]) if place < len(block) else ():
                number += 1
                if error == _BLANK:
                    blank += 1
                else:
                    found.add(body, number, error)
        if found.is_full:
            yield from found.rest()
    yield from found.rest()
    check_count(name, number - lines.before, found.count + blank)
    lines.finish(number)


def _document(name: str, lines: Lines, rows: RowsOfBodies | None) -> Iterator[pa.RecordBatch]:

    found, number = Bodies(name, "value"), 0
    for some in _batches(lines.document()):
        others: Sequence[int] = range(len(some))
        if rows is not None:
            made, others = rows(pa.array(some, pa.large_binary()))
            yield made
        for place in others:
            found.add(some[place][:MAX_BODY_BYTES], number + place + 1, _no_value(some[place]))
        number += len(some)
        yield from found.rest()
    lines.finish(number, "value")


def _batches(values: Iterator[bytes]) -> Iterator[list[bytes]]:
    some, size = list[bytes](), 0
    for value in values:
        some.append(value)
        size += len(value)
        if len(some) >= ROWS or size >= BYTES:
            yield some
            some, size = [], 0
    yield some


def _no_value(body: bytes) -> str | None:
    if len(body) > MAX_BODY_BYTES:
        return f"it has more than {MAX_BODY_BYTES:,} bytes; these are the first of them"
    error = syntax_error(body)
    return error and f"it is no JSON: {error}"


def _json_bodies(lines: Lines, line: bytes) -> list[tuple[bytes, str | None]]:
    """Return the bodies that a line is, and what is wrong with them."""
    read = _json_body(lines, line)
    pieces = [line] if read[1] is None or isinstance(line, Long) else lines.split(line)
    return [read] if len(pieces) == 1 else [_json_body(lines, piece) for piece in pieces]


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

    seen = 0
    source = content if content.seekable() else io.BytesIO(content.read())
    with pq.ParquetFile(source, coerce_int96_timestamp_unit="us", page_checksum_verification=True) as file:
        check_calendar(file)
        schema = _with_zones(file)
        names = file.schema_arrow.names
        if (twice := twice_named(names)) is not None:
            raise MalformedError(f"column {twice!r} is there twice; the columns are {', '.join(names)[:500]}")
        if (twice := next(filter(None, map(field_named_twice, file.schema_arrow.types)), None)) is not None:
            raise MalformedError(f"two fields of a struct are named {twice!r}")
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
    if (wrong := _invalid(batch)) is None:
        yield batch
        return
    found, good = Bodies(name, "row"), list[int]()
    for number in range(batch.num_rows):
        row = batch.slice(number, 1)
        if (wrong := _invalid(row)) is None:
            good.append(number)
        else:
            found.add(shown(batch, number), before + number + 1, wrong)
            if found.is_full:
                yield from found.rest()
    yield batch.take(pa.array(good, pa.int64()))
    yield from found.rest()


def _invalid(batch: pa.RecordBatch) -> str | None:

    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            return f"column {name!r}: {one_line(error).partition(' at string index')[0]}"
    return None


def check_calendar(file: pq.ParquetFile) -> None:
    """Raise MalformedError where a file has dates or instants in the calendar of Spark before 3.0, in which Arrow would read others.

    Spark's own reader converts them, in the zone that the file names.
    """
    metadata: Mapping[bytes, bytes] = file.metadata.metadata or {}
    version = metadata.get(b"org.apache.spark.version", b"9")
    in_old = {
        "INT96": version < b"3.1.0" or b"org.apache.spark.legacyINT96" in metadata,
        "DATE": (old := version < b"3.0.0" or b"org.apache.spark.legacyDateTime" in metadata),
        "TIMESTAMP": old,
    }
    leaves = [file.schema.column(at) for at in range(len(file.schema))]
    paths = [leaf.path for leaf in leaves if in_old.get(leaf.physical_type, False) or in_old.get(leaf.logical_type.type, False)]
    instants = _GREGORIAN if metadata.get(b"org.apache.spark.timeZone") in {b"UTC", b"Etc/UTC", b"GMT"} else _STANDARD
    for batch in file.iter_batches(ROWS, columns=paths) if paths else ():
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if any(_is_before(leaf, instants) for leaf in _leaves(column)):
                raise MalformedError(
                    f"column {name!r} has dates before 1582-10-15, or instants before 1900, in the calendar of Spark before 3.0, which are others "
                    "here; take the file in place, with Spark, or write it once more with Spark 3 or later "
                    "(spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED)"
                )


def _leaves(column: Any) -> Iterator[Any]:

    if not pa.types.is_nested(column.type):
        yield column
        return
    for inner in column.flatten() if pa.types.is_struct(column.type) else [column.flatten()]:
        yield from _leaves(inner)


def _is_before(column: Any, instants: int) -> bool:
    """Whether a column has a date, or an instant, that is another one in the calendar of Spark before 3.0.

    :param instants: the first one that is the same.
    """
    if not (pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)):
        return False
    first = pc.min(column.cast(pa.timestamp("s"), safe=False)).cast(pa.int64()).as_py()
    return first is not None and first < (_GREGORIAN if pa.types.is_date(column.type) else instants)


def _with_zones(file: pq.ParquetFile) -> pa.Schema | None:
    """Return the columns of a file that has INT96, as Spark and Impala write instants: Arrow takes it for what a clock shows. None: it has none."""
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
