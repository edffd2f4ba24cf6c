"""Readers of files: one for each format, for every door. What a file holds comes out as messages and malformed records, and nothing is left out.

A reader counts what it has read: every line is a part of exactly one record, or is blank, or is the header. A record that cannot be read is malformed
(the column ``ERROR``), with the number of its line and its bytes; its neighbours are read. What ends a file early (a truncated gzip, a broken
Parquet file) is one malformed record more. Only errors of the disk end a reader.
"""

from __future__ import annotations

import codecs
import errno
import io
import re
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal, cast

from airflow_poison.core.errors import ConservationError, MalformedError, SettingError
from airflow_poison.core.json_text import MARKS, syntax_error
from airflow_poison.core.schema import MAX_BODY_BYTES
from airflow_poison.core.sources.source import ERROR
from airflow_poison.core.texts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from io import BufferedReader

    import pyarrow as pa
    import pyarrow.parquet as pq

FORMATS = ("json", "lines", "csv", "parquet", "whole")
PATH, LINE = "file.path", "file.line"
PACKED: Final[Mapping[str, Literal["gzip", "bz2", "zstd", "lz4"]]] = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
"""Endings of names of compressed files, and how Arrow names what they are compressed with."""
_ROWS = 10_000
_BYTES = 64 << 20
_BLOCK = 128 << 10
_STEP = 64
_RECORD_LINES = 1 << 20
"""A record of CSV has at most so many lines: each takes memory, also an empty one."""
_QUOTE = '"'
_ASCII = bytes(range(128))
_WIDTHS = {"utf-16": 2, "utf-32": 4}
_IN_THE_FILE = frozenset({None, errno.EINVAL, errno.EOVERFLOW, errno.EFBIG})
"""Numbers of errors that what is in a file causes; others are of the disk. A broken Parquet file makes Arrow read at impossible places."""


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
        if plain in _WIDTHS:
            return f"{plain}-le"  # where no mark says it
        if plain[:6] in _WIDTHS or plain == "utf-8":
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
        with _opened(source) as content:
            for batch in _READERS[layout.format](name, content, layout):
                count += batch.num_rows
                yield batch
    except ConservationError:
        raise
    except Exception as error:  # noqa: BLE001  (libraries raise what they like for what is in a file)
        _raise_of_the_disk(error)
        before = f" {count:,} records before that were taken." if count else ""
        yield malformed(name, _beginning(source), f"{name} cannot be read as {layout.format}: {_one_line(error)}.{before}")


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


def _raise_of_the_disk(error: Exception) -> None:
    """Raise an error that is of no file: other files would have it, too."""
    if isinstance(error, OSError) and error.errno not in _IN_THE_FILE:
        raise error


@contextmanager
def _opened(source: Path | IO[bytes]) -> Iterator[Any]:
    if not isinstance(source, Path):
        yield source
        return
    packed = PACKED.get(source.suffix.lower())
    with source.open("rb") as raw:  # Python's: Arrow opens no name that is no UTF-8, and its errors do not name the file
        yield raw if packed is None else _Packed(raw, packed)


class _Packed:
    """What a compressed file contains, in one part or several; of a broken one all that is before the break."""

    def __init__(self, raw: BufferedReader, codec: Literal["gzip", "bz2", "zstd", "lz4"]) -> None:
        self._raw, self._codec, self._given = raw, codec, 0
        self._stream = self._begun()
        self._broken: Exception | None = None

    def seekable(self) -> bool:
        """Whether it can be read at any place: it cannot."""
        return False

    def read(self, size: int | None = None) -> bytes:
        """Return what comes next. Raises what Arrow raises for a broken file."""
        if self._broken is not None:
            raise self._broken
        try:
            found = bytes(self._stream.read(size))
        except Exception as error:
            _raise_of_the_disk(error)
            found = self._before_the_break()
            if not found:
                raise
        self._given += len(found)
        return found

    def _begun(self) -> pa.NativeFile:
        import pyarrow as pa

        self._raw.seek(0)
        return pa.input_stream(self._raw, compression=self._codec)

    def _before_the_break(self) -> bytes:
        """Return what a read that failed has thrown away, in small steps from the beginning of the file."""
        again, found = self._begun(), bytearray()
        left = self._given
        try:
            while left:
                left -= len(again.read(min(left, _BLOCK)))
            while more := again.read(_STEP):
                found += more
        except Exception as error:  # noqa: BLE001  (the same)
            _raise_of_the_disk(error)
            self._broken = error
        return bytes(found)


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
        return content.read(_BYTES)


def _one_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:500].rstrip(".")


# Physical lines -------------------------------------------------------------------------------------------------------


class _Long(bytes):
    """The beginning of a line that is longer than a body may be."""

    size: int

    @classmethod
    def of(cls, head: bytes, size: int) -> _Long:
        """Return the beginning of a line of so many bytes."""
        made = cls(head)
        made.size = size
        return made

    def error(self) -> str:
        return f"it has {self.size:,} bytes; at most {MAX_BODY_BYTES:,} are allowed. These are the first of them"


class _Lines:
    """The lines of a text file in an encoding, each with its end.

    :param returns: whether a carriage return alone ends a line. None: of a line that is too long otherwise.
    :ivar codec: what it is written in: as its byte order mark says, else as the layout does.
    """

    def __init__(self, content: Any, encoding: str, *, returns: bool | None) -> None:
        self._content, self._returns = content, returns
        begin = bytes(content.read(4))
        mark, self.codec = next(((mark, codec) for mark, codec in MARKS if begin.startswith(mark)), (b"", encoding))
        self._begin = begin[len(mark) :]
        self.plain = self.codec == "utf-8"
        """Whether the bytes of a line are its body."""
        self._width = _WIDTHS.get(self.codec[:6], 1)
        self._feed, self._return = "\n".encode(self.codec), "\r".encode(self.codec)
        self._limit = MAX_BODY_BYTES * self._width
        self._broken: Exception | None = None
        self._seen = self._given = 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines; one that is longer than a body may be as ``_Long``, its end included in its size."""
        rest, head, dropped = self._begin, b"", 0
        self._seen = len(rest)
        is_there = True
        while is_there:
            block = self._read(max(_BLOCK, len(rest)))
            is_there = bool(block)
            self._seen += len(block)
            whole = rest + block
            lines = self.cut(whole, returns=bool(self._returns))
            rest = lines.pop() if lines and (is_there or (self._broken is not None and not lines[-1].endswith(self._feed))) else b""
            if self._returns is None and len(rest) > self._limit and not dropped and self._return in rest:
                lines += self.cut(rest, returns=True)
                rest = lines.pop()
            if dropped and lines:
                lines[0], dropped = _Long.of(head, dropped + len(lines[0])), 0
            if len(whole) > self._limit:
                lines = [self._checked(line) for line in lines]
            self._given += sum(line.size if isinstance(line, _Long) else len(line) for line in lines)
            yield from lines
            if is_there and len(rest) > self._limit + 2 * self._width:
                over = (len(rest) - 2 * self._width) // self._width * self._width
                head = head if dropped else rest[: self._limit]
                rest, dropped = rest[over:], dropped + over
        if self._broken is None and self._given != self._seen:
            raise ConservationError(f"{self._seen:,} bytes were read, and their lines have {self._given:,}. Nothing was sent; report this.")

    def finish(self, lines: int) -> None:
        """Raise MalformedError when the file could not be read to its end.

        :param lines: how many were read.
        """
        if self._broken is not None:
            raise MalformedError(f"{_one_line(self._broken)}, behind line {lines:,}, byte {self._seen:,} of its content") from self._broken

    @property
    def is_broken(self) -> bool:
        """Whether the last line came because the file could not be read further."""
        return self._broken is not None

    def cut(self, text: bytes, *, returns: bool) -> list[bytes]:
        """Return lines with their ends. The last one may be only the beginning of one.

        :param returns: whether a carriage return alone ends a line.
        """
        if self._width == 1:
            return text.splitlines(keepends=True) if returns else io.BytesIO(text).readlines()
        ends = (self._return + self._feed, self._return, self._feed) if returns else (self._feed,)
        places = [0] if text else []
        all_ends = re.finditer(b"|".join(map(re.escape, ends)), text)
        places += [found.end() for found in all_ends if found.start() % self._width == 0]  # others are parts of two signs
        if places and places[-1] == len(text):
            places.pop()
        return [text[begin:end] for begin, end in zip(places, [*places[1:], len(text)], strict=True)]

    def bare(self, line: bytes) -> bytes:
        """Return a line without its end."""
        if len(line) % self._width:
            return line
        if line.endswith(self._feed):
            return line[: -self._width].removesuffix(self._return)
        return line.removesuffix(self._return) if self._returns else line

    def split(self, line: bytes) -> list[bytes]:
        """Return a line as what its carriage returns part."""
        if self._return not in self.bare(line):
            return [line]
        return [piece for piece in self.cut(line, returns=True) if piece]

    def body(self, line: bytes) -> tuple[bytes, str | None]:
        """Return the body that a line is, in UTF-8, and what is wrong with it."""
        if isinstance(line, _Long):
            return line, line.error()
        bare = self.bare(line)
        if self.plain:
            return bare, None
        try:
            return bare.decode(self.codec).encode(), None
        except ValueError as error:
            return bare, self.undecodable(error)

    def undecodable(self, error: ValueError) -> str:
        """Return what is wrong with bytes that are not in the encoding."""
        where = f"byte {error.start + 1} is" if isinstance(error, UnicodeDecodeError) else "it is"
        return f"{where} no {self.codec}; encoding= names another one"

    def _checked(self, line: bytes) -> bytes:
        return line if len(line) <= self._limit or len(self.bare(line)) <= self._limit else _Long.of(line[: self._limit], len(line))

    def _read(self, size: int) -> bytes:
        try:
            return bytes(self._content.read(size))
        except Exception as error:  # noqa: BLE001  (the same)
            _raise_of_the_disk(error)
            self._broken = error
            return b""


def _check_count(name: str, lines: int, accounted: int) -> None:
    """Raise ConservationError: an error of this module."""
    if lines != accounted:
        raise ConservationError(f"{name} has {lines:,} lines, of which {accounted:,} became records. Nothing was sent; report this.")


# Bodies: json, lines --------------------------------------------------------------------------------------------------


class _Bodies:
    """Records that are bodies, up to a batch of them."""

    def __init__(self, name: str) -> None:
        self._name, self._held = name, 0
        self._rows: list[tuple[bytes, int, str | None]] = []
        self.count = 0

    def add(self, body: bytes, number: int, error: str | None) -> bool:
        """Take a record; True when these are a batch.

        :param number: of the line.
        """
        self._rows.append((body, number, error))
        self._held += len(body)
        self.count += 1
        return len(self._rows) >= _ROWS or self._held >= _BYTES

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield a batch of what was added since the last one."""
        import pyarrow as pa

        if not self._rows:
            return
        bodies, numbers, errors = zip(*self._rows, strict=True)
        self._rows, self._held = [], 0
        texts = [None if error is None else f"line {number} of {self._name}: {error}" for number, error in zip(numbers, errors, strict=True)]
        yield pa.record_batch(
            {
                "body": pa.array(bodies, pa.binary()),
                "message_id": pa.array([f"{self._name}:{number}" for number in numbers]),
                "properties": pa.array([[(PATH, self._name), (LINE, str(number))] for number in numbers], pa.map_(pa.string(), pa.string())),
                ERROR: pa.array(texts, pa.string()),
            }
        )


def _lines(name: str, content: Any, layout: Layout) -> Iterator[pa.RecordBatch]:
    """Yield each line as a body, also an empty one."""
    lines, found, number = _Lines(content, layout.encoding, returns=False), _Bodies(name), 0
    for number, line in enumerate(lines, 1):
        body, error = lines.body(line)
        if found.add(body, number, error):
            yield from found.rest()
    yield from found.rest()
    _check_count(name, number, found.count)
    lines.finish(number)


def _json(name: str, content: Any, layout: Layout) -> Iterator[pa.RecordBatch]:
    """Yield each line that is not blank as a body. A line that is no JSON and holds carriage returns is as many lines."""
    lines, found, number, blank = _Lines(content, layout.encoding, returns=None), _Bodies(name), 0, 0
    for line in lines:
        read = _json_body(lines, line)
        pieces = [line] if read[1] is None or isinstance(line, _Long) else lines.split(line)
        for piece in pieces:
            number += 1
            body, error = read if len(pieces) == 1 else _json_body(lines, piece)
            if error == _BLANK:
                blank += 1
            elif found.add(body, number, error):
                yield from found.rest()
    yield from found.rest()
    _check_count(name, number, found.count + blank)
    lines.finish(number)


_BLANK = ""
"""What is wrong with a line that is no record."""


def _json_body(lines: _Lines, line: bytes) -> tuple[bytes, str | None]:
    body, error = lines.body(line)
    body = body if isinstance(body, _Long) else body.removesuffix(b"\r")  # the end of a line that was split there, or of the last one
    if error is not None or (why := syntax_error(body)) is None:
        return body, error
    return body, f"it is no JSON: {why}" if body.strip(b" \t\r\n") else _BLANK


# Columns: csv ---------------------------------------------------------------------------------------------------------


def _csv(name: str, content: Any, layout: Layout) -> Iterator[pa.RecordBatch]:
    """Yield rows, all cells text; an empty cell is null, and one of two quotes is empty text."""
    yield from _Csv(name, content, layout).batches()


@dataclass(slots=True)
class _Record:
    """A record of CSV.

    :param lines: it stands in, with their ends.
    :param number: of the first of them.
    :param size: of what goes on behind the first line, in bytes.
    :param cells: None: it cannot be read.
    :param error: what is wrong with it.
    """

    lines: list[bytes]
    number: int
    size: int = 0
    cells: list[str | None] | None = None
    error: str | None = None


class _Csv:
    """The rows of a CSV file.

    A quote opens a cell only at the beginning of the cell; within, two quotes are one, and line ends are text. A record that breaks that is malformed
    in its first line alone: the lines that it has swallowed are read again. Until they are, a quote within an unquoted cell is an error, too, for it
    may be the end of a cell whose beginning was lost.
    """

    def __init__(self, name: str, content: Any, layout: Layout) -> None:
        self._name, self._layout = name, layout
        self._lines = _Lines(content, layout.encoding, returns=True)
        self._unread, self._again = iter(self._lines), deque[bytes]()
        self._number = self._accounted = 0
        self._columns: tuple[str, ...] = ()
        self._unusable: str | None = None
        """Why the header names no columns; then each row is malformed."""
        self._cells: list[str | None] = []
        """Of the rows that are not yet given, one row behind the other."""
        self._empty_is_null = True
        """Whether an empty text among them is an empty cell, not one of two quotes."""
        self._bad = _Bodies(name)
        self._held = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, and the malformed ones in batches of their own."""
        yield from self._take_header()
        yield from self._read_again()
        quote, codec, delimiter = _QUOTE.encode(self._lines.codec), self._lines.codec, self._layout.delimiter
        width = len(self._columns) if self._unusable is None else -1
        add, full, held = self._cells.extend, _ROWS * max(width, 1), 0
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
                    if len(self._cells) >= full or held >= _BYTES:
                        yield from self._filled()
                        held = 0
                    continue
            if (record := self._record(line)) is not None:
                yield from self._row(record)
            yield from self._read_again()
        yield from self._filled()
        yield from self._bad.rest()
        _check_count(self._name, self._number, self._accounted)
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
            if len(self._cells) >= _ROWS * len(cells) or self._held >= _BYTES:
                yield from self._filled()
        elif self._bad.add(self._bytes(record), record.number, error):
            yield from self._bad.rest()

    def _bytes(self, record: _Record) -> bytes:
        """Return what arrived, without the last line end; in UTF-8 where it can be decoded."""
        joined = b"".join(record.lines)
        if isinstance(record.lines[0], _Long):
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
            if (twice := _twice(self._columns)) is not None:
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
        if isinstance(line, _Long):
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
            if error.args[0] == _NEVER_CLOSED and self._lines.is_broken:  # a part of what cannot be read
                self._accounted += len(record.lines)
                return None
            self._again.extendleft(reversed(record.lines[1:]))
            self._number -= len(record.lines) - 1
            return _Record(record.lines[:1], record.number, error=str(error))
        return record

    def _decoded(self, line: bytes, record: _Record) -> str | None:
        """Return a line as text, and note in its record that it is not in the encoding; None: its cells cannot be told apart then."""
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
        if isinstance(line, _Long) or record.size > MAX_BODY_BYTES or len(record.lines) > _RECORD_LINES:
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


# Columns: parquet; and whole files ------------------------------------------------------------------------------------


def _parquet(name: str, content: Any, layout: Layout) -> Iterator[pa.RecordBatch]:
    del layout
    import pyarrow.parquet as pq

    from airflow_poison.core.store.table.row_groups import streamed

    seen = 0
    source = content if content.seekable() else io.BytesIO(content.read())
    with pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
        schema = _with_zones(file)
        names = file.schema_arrow.names
        if (twice := _twice(names)) is not None:
            raise MalformedError(f"column {twice!r} is there twice; the columns are {', '.join(names)[:500]}")
        if ERROR in names:
            raise MalformedError(f"it has a column {ERROR!r}, which is reserved")
        for batch in streamed(file, _ROWS):
            seen += batch.num_rows
            yield batch if schema is None else batch.cast(schema)
        if seen != file.metadata.num_rows:
            raise MalformedError(f"{name} has {seen:,} rows, and {file.metadata.num_rows:,} by its footer")


def _with_zones(file: pq.ParquetFile) -> pa.Schema | None:
    """Return the columns of a file that has INT96, as Spark and Impala write instants: Arrow takes it for what a clock shows. None: it has none."""
    import pyarrow as pa

    leaves = [file.schema.column(at).physical_type for at in range(len(file.schema))]
    unseen = iter(leaves)

    def zoned(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_map(kind):
            return pa.map_(zoned(kind.key_type), kind.item_field.with_type(zoned(kind.item_type)))
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
    while more := content.read(_BLOCK):
        size += len(more)
    error = None if size <= MAX_BODY_BYTES else f"{name}: {_Long.of(b'', size).error()}"
    yield malformed(name, body[:MAX_BODY_BYTES], "").set_column(3, ERROR, pa.array([error], pa.string()))


def _twice(names: Sequence[str]) -> str | None:
    return next((name for name, times in Counter(names).items() if times > 1), None)


_READERS: Mapping[str, Callable[[str, Any, Layout], Iterator[pa.RecordBatch]]] = {
    "json": _json,
    "lines": _lines,
    "csv": _csv,
    "parquet": _parquet,
    "whole": _whole,
}
