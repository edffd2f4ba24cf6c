"""Files as lines: opened, decompressed, split and decoded. Each byte is in one line, and no line in memory is longer than a body may be."""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import io
import re
from contextlib import contextmanager
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal, cast

from airflow_poison.sources.documents import begins_document, errors_of, values_in
from airflow_poison.sources.source import ERROR
from airflow_poison.values.errors import ConservationError, MalformedError
from airflow_poison.values.json_text import MARKS
from airflow_poison.values.libraries import np, pa, pc
from airflow_poison.values.schema import MAX_BODY_BYTES
from airflow_poison.values.texts import of_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from io import BufferedReader


PATH = "file.path"
PACKED: Final[Mapping[str, Literal["gzip", "bz2", "zstd", "lz4"]]] = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
"""Endings of names of compressed files, and how Arrow names what they are compressed with."""
ROWS, BYTES = 10_000, 64 << 20
"""Of a batch, about."""
_BLOCK, _TEXT = 128 << 10, 2 << 20
"""Bytes that are read at once: for a list of lines, and for one text of many."""
_MARKS, _FEED = tuple(mark for mark, _ in MARKS), ord("\n")
WIDTHS: Final[Mapping[str, int]] = {"utf-16": 2, "utf-32": 4}
"""Bytes of a unit of those encodings in which ASCII is not a byte."""
_IN_THE_FILE = frozenset({None, errno.EINVAL, errno.EOVERFLOW, errno.EFBIG})
"""Numbers of errors that what is in a file causes; others are of the disk. A broken Parquet file makes Arrow read at impossible places."""


def raise_of_the_disk(error: Exception) -> None:
    """Raise an error that is of no file: other files would have it, too."""
    if isinstance(error, OSError) and error.errno not in _IN_THE_FILE:
        raise error


@contextmanager
def opened(source: Path | IO[bytes]) -> Iterator[Any]:
    """Open a file, decompressed as the ending of its name says. Raises OSError."""
    if not isinstance(source, Path):
        yield source
        return
    packed = PACKED.get(source.suffix.lower())
    with source.open("rb") as raw:  # Python's: Arrow opens no name that is no UTF-8, and its errors do not name the file
        yield raw if packed is None else _Packed(raw, packed)


def unpacked(name: str, content: bytes) -> Any:
    """Return what a file contains, decompressed as the ending of its name says."""
    packed = PACKED.get(Path(name).suffix.lower())
    return io.BytesIO(content) if packed is None else _Packed(io.BytesIO(content), packed)


class Part:
    """Whole lines of a file that is open.

    :param size: in bytes.
    :param before: so many lines of the file are before them; of parts of ``cuts`` it says only whether there are some.
    """

    def __init__(self, raw: BufferedReader, begin: int, size: int, before: int) -> None:
        self._raw, self._left, self.before = raw, size, before
        raw.seek(begin)

    def read(self, size: int) -> bytes:
        """Return what comes next."""
        found = self._raw.read(min(size, self._left))
        self._left -= len(found)
        return found


def parts(path: Path, size: int, without: bytes) -> list[tuple[int, int, int]]:
    """Return where parts of a file begin, how many bytes they have, and how many lines are before them, for ``Part``; empty: it cannot be split.

    :param size: of a part, about, in bytes.
    :param without: bytes with which a line may go on behind its end.
    Raises OSError.
    """
    if path.suffix.lower() in PACKED:
        return []
    found, begin, before = list[tuple[int, int, int]](), 0, 0
    at, lines, held = 0, 0, b""  # of the part that is not cut out yet; and a carriage return, of which it is not known what follows
    block = bytearray(_BLOCK)
    ends = np.frombuffer(block, np.uint8)
    with path.open("rb", buffering=0) as content:
        while length := content.readinto(block):
            text = held + block[:length]
            held = text[-1:] if text.endswith(b"\r") else b""
            if (not at and text.startswith(_MARKS)) or has_lone_returns(text[: len(text) - len(held)]) or (without and without in text):
                return []
            cut = 0
            while (end := block.find(b"\n", max(begin + size - 1 - at, cut), length) + 1) > 0:
                found.append((begin, at + end - begin, before))
                before, lines = before + lines + int(np.count_nonzero(ends[cut:end] == _FEED)), 0
                begin, cut = at + end, end
            lines += int(np.count_nonzero(ends[cut:length] == _FEED))
            at += length
            if at - begin > size + MAX_BODY_BYTES:
                return []
    if at > begin:
        found.append((begin, at - begin, before))
    return found


def cuts(path: Path, size: int) -> list[tuple[int, int, int]]:
    """Return where parts of a file begin, as ``parts`` does, where each line feed ends a record; nothing else of it is read. Raises OSError."""
    if path.suffix.lower() in PACKED:
        return []
    ends, end = list[int](), path.stat().st_size
    with path.open("rb") as content:
        if content.read(4).startswith(_MARKS):
            return []
        at = size
        while at < end:
            content.seek(at - 1)
            while (block := content.readline(_BLOCK)) and not block.endswith(b"\n"):
                pass
            ends.append(content.tell())
            at = ends[-1] + size
    begins = [0, *(each for each in ends if each < end)]
    return [(begin, behind - begin, place and 1) for place, (begin, behind) in enumerate(pairwise((*begins, end)))]


def texts_of(lines: memoryview) -> pa.Array[Any]:
    """Return whole lines, each with its line feed, as ``large_binary``; it refers to the same bytes."""
    behind = np.flatnonzero(np.frombuffer(lines, np.uint8) == _FEED) + 1
    offsets = np.concatenate([np.zeros(1, np.int64), behind])
    return pa.Array.from_buffers(pa.large_binary(), len(behind), [None, pa.py_buffer(offsets.data), pa.py_buffer(cast("bytes", lines))])


def has_lone_returns(text: bytes) -> bool:
    """Whether a carriage return stands elsewhere than before a line feed."""
    return b"\r" in text and text.count(b"\r") != text.count(b"\r\n")


class _Packed:
    """What a compressed file contains, in one part or several; of a broken one all that is before the break."""

    def __init__(self, raw: BufferedReader | io.BytesIO, codec: Literal["gzip", "bz2", "zstd", "lz4"]) -> None:
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
            raise_of_the_disk(error)
            found = self._before_the_break()
            if not found:
                raise
        self._given += len(found)
        return found

    def _begun(self) -> pa.NativeFile | gzip.GzipFile | _Bz2:
        self._raw.seek(0)
        if self._codec == "gzip":
            return gzip.GzipFile(fileobj=self._raw)  # passes over zeros behind the last part, as gzip itself does
        if self._codec == "bz2":
            return _Bz2(self._raw)
        return pa.input_stream(self._raw, compression=self._codec)

    def _before_the_break(self) -> bytes:
        """Return what a read that failed has thrown away: from the beginning of the file again, at last byte by byte."""
        again, found = self._begun(), bytearray()
        left = self._given
        try:
            while left:
                left -= len(again.read(min(left, _BLOCK)))
            while more := again.read(1):
                found += more
        except Exception as error:  # noqa: BLE001  (the same)
            raise_of_the_disk(error)
            self._broken = error
        return bytes(found)


class _Bz2:
    """The content of a file of bzip2, in one part or several. Arrow refuses an empty part, and Python passes over what follows the last one."""

    def __init__(self, raw: BufferedReader | io.BytesIO) -> None:
        self._raw, self._unread = raw, b""
        self._part = bz2.BZ2Decompressor()
        self._begun = False

    def read(self, size: int | None = None) -> bytes:
        """Return what comes next. Raises OSError, EOFError."""
        found = bytearray()
        while size is None or len(found) < size:
            if self._part.eof:
                self._unread, self._part, self._begun = self._part.unused_data, bz2.BZ2Decompressor(), False
            if self._part.needs_input and not self._unread:
                self._unread = self._raw.read(_BLOCK)
                if not self._unread and self._begun:
                    raise EOFError("Truncated compressed stream")
                if not self._unread:
                    break
            found += self._part.decompress(self._unread, -1 if size is None else size - len(found))
            self._unread, self._begun = b"", True
        return bytes(found)


def one_line(error: BaseException) -> str:
    """Return the first line of an error's text that says what has happened."""
    return (of_java(str(error)) or type(error).__name__)[:500].rstrip(".")


class Long(bytes):
    """The beginning of a line that is longer than a body may be."""

    size: int

    @classmethod
    def of(cls, head: bytes, size: int) -> Long:
        """Return the beginning of a line of so many bytes."""
        made = cls(head)
        made.size = size
        return made

    def error(self) -> str:
        """Return what is wrong with it."""
        return f"it has {self.size:,} bytes; at most {MAX_BODY_BYTES:,} are allowed. These are the first of them"


class Lines:
    """The lines of a text file in an encoding, each with its end.

    :param returns: whether a carriage return alone ends a line. None: of a line that is too long otherwise.
    :ivar codec: what it is written in: as its byte order mark says, else as the layout does.
    :ivar before: so many lines are before these.
    """

    def __init__(self, content: Any, encoding: str, *, returns: bool | None) -> None:
        self._content, self._returns = content, returns
        self.before = content.before if isinstance(content, Part) else 0
        begin = b"" if self.before else bytes(content.read(4))  # a mark stands at the beginning of a file alone
        mark, self.codec = next(((mark, codec) for mark, codec in MARKS if begin.startswith(mark)), (b"", encoding))
        self._begin = begin[len(mark) :]
        self.plain = self.codec == "utf-8"
        """Whether the bytes of a line are its body."""
        self._width = WIDTHS.get(self.codec[:6], 1)
        self._feed, self._return = "\n".encode(self.codec), "\r".encode(self.codec)
        self._limit = MAX_BODY_BYTES * self._width
        self._broken: Exception | None = None
        self._seen = self._given = 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines; one that is longer than a body may be as ``Long``, its end included in its size."""
        return chain.from_iterable(self.blocks())

    def blocks(self) -> Iterator[list[bytes]]:
        """Yield the lines of one block of the file after another."""
        return cast("Iterator[list[bytes]]", self.texts(joined=False))

    def texts(self, *, joined: bool) -> Iterator[list[bytes] | memoryview]:
        """Yield the lines of one block of the file after another.

        :param joined: lines that need not be looked at come as one text; each ends with a line feed.
        """
        rest, head, dropped = self._begin, b"", 0
        self._seen = len(rest)
        is_there = True
        while is_there:
            block = self._read(max(_TEXT if joined else _BLOCK, len(rest)))
            is_there = bool(block)
            self._seen += len(block)
            whole = rest + block
            if joined and self.plain and is_there and not dropped and len(whole) <= self._limit:
                end = whole.rfind(b"\n") + 1
                rest = whole[end:]
                self._given += end
                yield memoryview(whole)[:end]
                continue
            lines = self.cut(whole, returns=bool(self._returns))
            rest = lines.pop() if lines and (is_there or (self._broken is not None and not lines[-1].endswith(self._feed))) else b""
            if self._returns is None and len(rest) > self._limit and not dropped and self._return in rest:
                lines += self.cut(rest, returns=True)
                rest = lines.pop()
            if dropped and lines:
                lines[0], dropped = Long.of(head, dropped + len(lines[0])), 0
            if len(whole) > self._limit:
                lines = [self._checked(line) for line in lines]
            self._given += sum(line.size if isinstance(line, Long) else len(line) for line in lines)
            yield lines
            if is_there and len(rest) > self._limit + 2 * self._width:
                over = (len(rest) - 2 * self._width) // self._width * self._width
                head = head if dropped else rest[: self._limit]
                rest, dropped = rest[over:], dropped + over
        if self._broken is None and self._given != self._seen:
            raise ConservationError(f"{self._seen:,} bytes were read, and their lines have {self._given:,}. Nothing was sent; report this.")

    def finish(self, lines: int, unit: str = "line") -> None:
        """Raise MalformedError when the file could not be read to its end.

        :param lines: how many were read, or how many of another unit.
        """
        if self._broken is not None:
            raise MalformedError(f"{one_line(self._broken)}, behind {unit} {lines:,}, byte {self._seen:,} of its content") from self._broken

    @property
    def is_broken(self) -> bool:
        """Whether the last line came because the file could not be read further."""
        return self._broken is not None

    def begins_document(self) -> bool:
        """Whether this is a document of JSON, whose values have several lines. What is read for that is read again with the lines, or the values."""
        more = b"\n"
        while (found := begins_document(self._begin.decode(self.codec, "ignore"), is_all=not more)) is None and len(self._begin) <= self._limit:
            more = self._read(max(_BLOCK, len(self._begin)))
            self._begin += more
        return bool(found)

    def document(self) -> Iterator[bytes]:
        """Yield the values of a document, in UTF-8."""
        errors = errors_of(self.codec)
        decoder = codecs.getincrementaldecoder(self.codec)(errors)

        def read(size: int) -> str:
            while True:
                block, self._begin = self._begin or self._read(size), b""
                self._seen += len(block)
                try:
                    text = decoder.decode(block, final=not block)
                except UnicodeDecodeError as error:
                    self._broken, text, block = error, "", b""
                if text or not block:
                    return text

        for value in values_in(read):
            yield value.encode(errors=errors)

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
        return [text[begin:end] for begin, end in pairwise([*places, len(text)])]

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

    def bodies(self, lines: Sequence[bytes]) -> list[bytes] | None:
        """Return the bodies that lines are; None: each is to be looked at alone."""
        if not self.plain or self._returns or any(isinstance(line, Long) for line in lines):
            return None
        if has_lone_returns(b"".join(lines)):
            return None
        return [line.rstrip(b"\r\n") for line in lines]

    def body(self, line: bytes) -> tuple[bytes, str | None]:
        """Return the body that a line is, in UTF-8, and what is wrong with it."""
        if isinstance(line, Long):
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
        return line if len(line) <= self._limit or len(self.bare(line)) <= self._limit else Long.of(line[: self._limit], len(line))

    def _read(self, size: int) -> bytes:
        if self._broken is not None:
            return b""
        try:
            return bytes(self._content.read(size))
        except Exception as error:  # noqa: BLE001  (the same)
            raise_of_the_disk(error)
            self._broken = error
            return b""


def check_count(name: str, lines: int, accounted: int) -> None:
    """Raise ConservationError: an error of this module."""
    if lines != accounted:
        raise ConservationError(f"{name} has {lines:,} lines, of which {accounted:,} became records. Nothing was sent; report this.")


class Bodies:
    """Records that are bodies, up to a batch of them."""

    def __init__(self, name: str, unit: str = "line") -> None:
        self._name, self._unit, self._held = name, unit, 0
        self._bodies, self._numbers, self._errors = list[bytes](), list[int](), dict[int, str]()
        self.count = 0

    def add(self, body: bytes, number: int, error: str | None) -> None:
        """Take a record.

        :param number: of the line.
        """
        if error is not None:
            self._errors[len(self._bodies)] = error
        self.extend([body], number)

    def extend(self, bodies: Sequence[bytes], number: int) -> None:
        """Take records with nothing wrong, of lines that follow each other.

        :param number: of the first line.
        """
        self._numbers += range(number, number + len(bodies))
        self._bodies += bodies
        self._held += sum(map(len, bodies))
        self.count += len(bodies)

    @property
    def is_full(self) -> bool:
        """Whether these are a batch."""
        return len(self._bodies) >= ROWS or self._held >= BYTES

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield the records added since the last batch, in batches."""
        maps, joined = cast("Any", pa.MapArray), cast("Any", pc.binary_join_element_wise)
        for first in range(0, len(self._bodies), ROWS):
            bodies, lines = self._bodies[first : first + ROWS], self._numbers[first : first + ROWS]
            errors = [self._errors.get(place) for place in range(first, first + len(bodies))]
            texts = [None if each is None else f"{self._unit} {line} of {self._name}: {each}" for line, each in zip(lines, errors, strict=True)]
            numbers, places = pa.array(lines, pa.int64()).cast(pa.string()), np.arange(2 * len(lines))
            values = pa.concat_arrays([pa.array([self._name]), numbers]).take(places % 2 * (places // 2 + 1))
            keys = pa.array([PATH, f"file.{self._unit}"]).take(places % 2)
            yield pa.record_batch(
                {
                    "body": pa.array(bodies, pa.binary()),
                    "message_id": joined(pa.scalar(self._name), numbers, ":"),
                    "properties": maps.from_arrays(pa.array(range(0, 2 * len(lines) + 1, 2), pa.int32()), keys, values),
                    ERROR: pa.array(texts, pa.string()),
                }
            )
        self._bodies, self._numbers, self._errors, self._held = [], [], {}, 0
