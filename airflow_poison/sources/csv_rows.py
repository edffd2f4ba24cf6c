"""CSV: its rows, from a tokenizer of our own, for which a broken record has neighbours.

Arrow's reader and Python's drop rows, end at the first broken one, or cannot distinguish an empty cell from one of two quotes.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from airflow_poison.sources.source import ERROR
from airflow_poison.sources.text_lines import BYTES, ROWS, Bodies, Lines, Long, check_count
from airflow_poison.values.errors import MalformedError
from airflow_poison.values.schema import MAX_BODY_BYTES
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from airflow_poison.sources.readers import Layout

_RECORD_LINES = 1 << 20
"""A record has at most so many lines: each takes memory, also an empty one."""
_QUOTE = '"'


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
        self._unread, self._again = iter(self._lines), deque[bytes]()
        self._number = self._accounted = 0
        self._columns: tuple[str, ...] = ()
        self._unusable: str | None = None
        """Why the header names no columns; then each row is malformed."""
        self._cells: list[str | None] = []
        """Of the rows that are not yet given, one row behind the other."""
        self._empty_is_null = True
        """Whether an empty text among them is an empty cell, not one of two quotes."""
        self._bad = Bodies(name)
        self._held = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, and the malformed ones in batches of their own."""
        yield from self._take_header()
        yield from self._read_again()
        quote, codec, delimiter = _QUOTE.encode(self._lines.codec), self._lines.codec, self._layout.delimiter
        width = len(self._columns) if self._unusable is None else -1
        add, full, held = self._cells.extend, ROWS * max(width, 1), 0
        for line in self._unread:
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
        yield from self._filled()
        yield from self._bad.rest()
        check_count(self._name, self._number, self._accounted)
        self._lines.finish(self._number)

    def _read_again(self) -> Iterator[pa.RecordBatch]:
        """Read the lines that a record which cannot be read has swallowed."""
        while self._again:
            self._number += 1
            if (record := self._record(self._again.popleft(), doubtful=True)) is not None:
                yield from self._row(record)

    def _next(self) -> bytes | None:
        line = self._again.popleft() if self._again else next(self._unread, None)
        self._number += line is not None
        return line

    def _row(self, record: _Record) -> Iterator[pa.RecordBatch]:
        self._accounted += len(record.lines)
        error, cells = record.error, record.cells
        if error is None and self._unusable is not None:
            error = self._unusable
        if error is None and cells is not None and len(cells) != len(self._columns):
            has = f"{len(cells)} cell" + "s" * (len(cells) != 1)
            error = f"it has {has}, the header {len(self._columns)}; delimiter= and header= say how the file is written"
        if error is None and cells is not None:
            if self._empty_is_null and "" in cells:
                self._empty_is_null = False
                self._cells[:] = [cell or None for cell in self._cells]
            self._cells.extend(cells)
            self._held += len(record.lines[0]) + record.size
            if len(self._cells) >= ROWS * len(cells) or self._held >= BYTES:
                yield from self._filled()
        elif self._bad.add(self._bytes(record), record.number, error):
            yield from self._bad.rest()

    def _bytes(self, record: _Record) -> bytes:
        """Return what arrived, without the last line end; in UTF-8 where it can be decoded."""
        joined = b"".join(record.lines)
        if isinstance(record.lines[0], Long):
            return joined
        body, _ = self._lines.body(joined)
        return body

    def _filled(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._cells:
            width = len(self._columns)
            columns = [pa.array(self._cells[number::width], pa.string()) for number in range(width)]
            if self._empty_is_null:
                columns = [pc.if_else(pc.equal(column, pa.scalar("")), pa.scalar(None, pa.string()), column) for column in columns]
            self._cells.clear()
            self._empty_is_null = True
            yield pa.record_batch(columns, names=list(self._columns))
        self._held = 0

    # The header -------------------------------------------------------------------------------------------------------

    def _take_header(self) -> Iterator[pa.RecordBatch]:
        """Read what names the columns. A header that cannot be read is malformed, and so is each row then."""
        header = self._layout.header
        if isinstance(header, tuple):
            self._columns = header
            return
        first = header is True
        for _ in range(0 if first else cast("int", header) - 1):
            self._accounted += self._next() is not None
        while (line := self._next()) is not None:
            record = self._record(line, blank=lambda text: first and not text.strip())
            if record is None:
                continue
            if record.cells is None or record.error is not None:
                self._unusable = f"the header, line {record.number}, cannot be read: {record.error}"
                yield from self._row(record)
                return
            self._accounted += len(record.lines)
            self._columns = tuple(cell or "" for cell in record.cells)
            if (twice := twice_named(self._columns)) is not None:
                self._unusable = f"the header, line {record.number}, names column {twice!r} twice: {', '.join(self._columns)[:500]}"
            elif ERROR in self._columns:
                self._unusable = f"the header, line {record.number}, names column {ERROR!r}, which is reserved"
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
