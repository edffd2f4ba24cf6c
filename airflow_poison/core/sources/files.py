"""``Files``: each file that falls into a folder, or below a prefix of an object store, is taken once."""

from __future__ import annotations

import glob
import logging
import os
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from stat import S_ISREG
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_poison.core.errors import InputError, MalformedError, SettingError, SourceError, StoreUnreachableError
from airflow_poison.core.sources.source import ERROR, Reached, Source, Take
from airflow_poison.core.texts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_poison.core.sources.decoding import Schema
    from airflow_poison.core.sources.source import JsonValue, Position

_log = logging.getLogger(__name__)
FORMATS = ("json", "lines", "csv", "parquet", "whole")
PATH, LINE = "file.path", "file.line"
_ROWS = 10_000
_BYTES = 64 << 20
_UNREADABLE = "\n!"
"""Ends the key of a file that could not be opened: it is looked at again."""
_WILD = re.compile(r"[*?\[]")


@dataclass(slots=True)
class _Found:
    """A file as a list has it.

    :param path: as users see it.
    :param version: what tells its content from another one under the same name. An object may change between the list and its reading: then of what
        was read.
    """

    path: str
    size: int
    changed_at: float
    version: str


@dataclass(frozen=True)
class Files(Source):
    """Files of a folder or an object store, each taken once, however late it comes: names that were taken are kept, no time tells what is new.

    A record that is not what its format says is a message with an error, with its bytes. So is a file that cannot be read as a whole.

    :param pattern: ``/landing/*.json``, ``/landing/**/*.csv.gz``, ``s3://bucket/landing/*.parquet`` (also ``gs://``, ``abfss://``). ``*`` stands for
        any part of a name, ``**`` for folders. Compressed files (``.gz``, ``.bz2``, ``.zst``, ``.lz4``) are read as what they contain.
    :param format: ``json``: a JSON value on each line; ``lines``: text; both are a body for each line. ``csv`` (all columns are text), ``parquet``:
        rows with columns. ``whole``: each file is one body.
    :param rewritten: what is done with a file that was taken and has other content now: ``ignore``, or ``take`` all of it again.
    :param settled: how long a file of a folder has to be unchanged before it is taken: its writer may not have finished. Objects come whole.
    :param max_files: take at most so many at once.
    :param name: what the position is kept under. None: the pattern.
    :param schema: what each body is checked against or decoded with.
    :param storage_options: for an object store, as Delta Lake names them; others come from the environment.
    """

    pattern: str
    format: str = "json"
    rewritten: str = "ignore"
    settled: timedelta = timedelta(seconds=10)
    max_files: int | None = None
    name: str = ""
    schema: Schema | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    _allowed: ClassVar[Mapping[str, tuple[str, ...]]] = {"format": FORMATS, "rewritten": ("ignore", "take")}

    def __post_init__(self) -> None:
        for setting, allowed in self._allowed.items():
            if getattr(self, setting) not in allowed:
                raise SettingError(setting, getattr(self, setting), ", ".join(allowed))
        if not isinstance(self.pattern, str) or not self.pattern.strip():
            raise SettingError("pattern", self.pattern, "where the files are: /landing/*.json, s3://bucket/landing/*.json")
        if self.max_files is not None and self.max_files < 1:
            raise SettingError("max_files", self.max_files, "a number from 1 on, or None for all")
        if not self._in_bucket and not Path(self.pattern).is_absolute():
            raise SettingError("pattern", self.pattern, "an absolute path, since tasks run in folders of their own; or the URI of an object store")
        object.__setattr__(self, "name", self.name or self.pattern)

    @property
    def columns(self) -> bool:  # type: ignore[override]
        """Whether records have columns."""
        return self.format in {"csv", "parquet"}

    @property
    def asset_uri(self) -> str:
        """The folder above the first part of the pattern that stands for several names."""
        return self._fixed if self._in_bucket else f"file://{self._fixed}"

    def plan(self, position: Position, *, limit: int | None) -> Take | None:
        """Return the files that were not taken, the oldest first. Raises SourceError for a folder that is not there or may not be listed."""
        taken = frozenset(str(key) for key in position.keys()["key"].to_pylist())
        new = [file for file in self._listed(taken) if self._is_new(file, taken)]
        return self._take(new[: self.max_files], limit, position.at)

    def between(self, start: str, end: str) -> Take:
        """Return the files that were changed between two instants.

        :param start: ISO 8601, included; ``end`` is excluded.
        """
        first, last = (_instant(text).timestamp() for text in (start, end))
        found = [file for file in self._listed() if first <= file.changed_at < last]
        return self._take(found, None, {}) or Take(what="no files", batches=lambda: iter(()), reached=lambda: Reached({}))

    def describe(self, at: Mapping[str, JsonValue]) -> str:
        """Return how many files were taken."""
        return counted(int(at.get("files", 0)), "file was taken", "files were taken")  # type: ignore[arg-type]  # our own number

    # What is there ----------------------------------------------------------------------------------------------------

    @property
    def _in_bucket(self) -> bool:
        return "://" in self.pattern

    @property
    def _fixed(self) -> str:
        fixed = self.pattern[: match.start()] if (match := _WILD.search(self.pattern)) else self.pattern
        return fixed.rpartition("/")[0] or "/"

    def _listed(self, taken: Collection[str] = ()) -> list[_Found]:
        """Return the files there are, the oldest first.

        :param taken: keys of files that need not be in it.
        """
        found = self._objects() if self._in_bucket else self._local(taken if self.rewritten == "ignore" else ())
        return sorted(found, key=lambda file: (file.changed_at, file.path))

    def _local(self, taken: Collection[str]) -> Iterator[_Found]:
        folder = Path(self._fixed)
        try:
            next(folder.iterdir(), None)
        except OSError as error:
            raise SourceError(
                f"The folder {folder} of source {self.name!r} cannot be listed: {error.strerror or error}. Check that it is mounted where the task "
                "runs, and the rights of this user. Nothing was sent."
            ) from error
        young = 0
        for path in glob.iglob(self.pattern, recursive=True):  # noqa: PTH207  (that of pathlib wants the folder and the pattern apart)
            if path in taken:
                continue
            try:
                seen = os.stat(path)  # noqa: PTH116  (a million of them)
            except FileNotFoundError:
                continue
            if not S_ISREG(seen.st_mode):
                continue
            if time.time() - seen.st_mtime < self.settled.total_seconds():
                young += 1
            else:
                yield _Found(path, seen.st_size, seen.st_mtime, f"{seen.st_size}-{seen.st_mtime_ns}")
        if young:
            many = counted(young, "file was changed", "files were changed")
            _log.info("%s: %s less than %g s ago and may still be written; later takes look again.", self.name, many, self.settled.total_seconds())

    def _objects(self) -> Iterator[_Found]:
        from airflow_poison.core.store.bucket.objects import Objects

        scheme, _, rest = self.pattern.partition("://")
        bucket, _, wanted = rest.partition("/")
        expected, root = _matcher(wanted), f"{scheme}://{bucket}"
        try:
            for each in Objects.at(root, self.storage_options).list(self._fixed.removeprefix(root).strip("/")):
                if expected.fullmatch(each.path):
                    yield _Found(f"{root}/{each.path}", each.size, each.changed_at.timestamp(), each.tag)
        except StoreUnreachableError as error:
            raise SourceError(f"Source {self.name!r} cannot be listed: {error} Nothing was sent.") from error

    def _is_new(self, file: _Found, taken: frozenset[str]) -> bool:
        if self._key(file) in taken:
            return False
        unopened = self._key(file) + _UNREADABLE
        return unopened not in taken or _can_be_opened(file.path)

    def _key(self, file: _Found) -> str:
        return file.path if self.rewritten == "ignore" else f"{file.path}\n{file.version}"

    # What is in it ----------------------------------------------------------------------------------------------------

    def _take(self, files: Sequence[_Found], limit: int | None, at: Mapping[str, JsonValue]) -> Take | None:
        if not files:
            return None
        done: list[tuple[str, int]] = []

        def batches() -> Iterator[pa.RecordBatch]:
            done.clear()
            sent = 0
            for file in files:
                if limit is not None and sent >= limit:
                    return
                opened = True
                for batch in self._records(file):
                    sent += batch.num_rows
                    opened = opened and batch.schema.metadata != {b"unopened": b"yes"}
                    yield batch.replace_schema_metadata(None)
                done.append((self._key(file) + _UNREADABLE * (not opened), int(file.changed_at)))

        def reached() -> Reached:
            import pyarrow as pa

            keys = pa.table({"key": pa.array([key for key, _ in done], pa.string()), "at": pa.array([when for _, when in done], pa.int64())})
            return Reached({"files": int(at.get("files", 0)) + len(done)}, keys)  # type: ignore[arg-type]  # our own number

        size = sum(file.size for file in files)
        amount = f"{size / 2**20:,.1f} MiB" if size >= 2**20 else counted(size, "byte", "bytes")
        return Take(what=f"{counted(len(files), 'file', 'files')}, {amount}", batches=batches, reached=reached)

    def _records(self, file: _Found) -> Iterator[pa.RecordBatch]:
        """Yield the records of a file; a file that cannot be read as a whole is one record with an error.

        Raises SourceError when the file changes meanwhile, or the store does not answer.
        """
        import pyarrow as pa

        try:
            with self._here(file) as path:
                try:
                    yield from _READERS[self.format](file.path, path)
                    self._check_unchanged(file)
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError, MalformedError, UnicodeDecodeError, EOFError, OSError) as error:
                    if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of what is in the file
                        raise
                    yield _wrong(file.path, _beginning(path), f"{file.path} cannot be read as {self.format}: {_one_line(error)}")
        except FileNotFoundError as error:
            raise SourceError(f"{file.path} of source {self.name!r} was removed while it was read. Nothing was sent; run the task again.") from error
        except StoreUnreachableError as error:
            raise SourceError(f"{file.path} of source {self.name!r} cannot be read: {error} Nothing was sent.") from error
        except PermissionError as error:
            yield _wrong(
                file.path, b"", f"{file.path} cannot be opened: {error.strerror}. It is taken when this user may read it"
            ).replace_schema_metadata({"unopened": "yes"})
        except OSError as error:
            raise SourceError(f"{file.path} of source {self.name!r} cannot be read: {error}. Nothing was sent; run the task again.") from error

    @contextmanager
    def _here(self, file: _Found) -> Iterator[Path]:
        """Have a file on this machine while the block runs."""
        if not self._in_bucket:
            yield Path(file.path)
            return
        from airflow_poison.core.store.bucket.objects import Objects

        scheme, _, rest = file.path.partition("://")
        bucket, _, name = rest.partition("/")
        with TemporaryDirectory(prefix="airflow-poison-files-") as folder:
            path = Path(folder, Path(name).name)
            file.version = Objects.at(f"{scheme}://{bucket}", self.storage_options).download(name, path)
            yield path

    def _check_unchanged(self, file: _Found) -> None:
        if self._in_bucket:
            return
        seen = Path(file.path).stat()
        if f"{seen.st_size}-{seen.st_mtime_ns}" != file.version:
            raise SourceError(
                f"{file.path} of source {self.name!r} was changed while it was read: its writer had not finished. Nothing was sent; the next run "
                f"takes it when it has been unchanged for {self.settled.total_seconds():g} s (settled=). Write files elsewhere; move them in when "
                "they are whole."
            )


# Readers: the name that users see and where the file lies here -> batches of records ------------------------------------


def _lines(name: str, path: Path) -> Iterator[pa.RecordBatch]:
    """Yield a record for each line that is not empty. Raises pa.ArrowInvalid, OSError."""
    yield from _line_batches(name, path, lambda _line: None)


def _json_lines(name: str, path: Path) -> Iterator[pa.RecordBatch]:
    """The same of JSON values."""
    import json

    def wrong(line: bytes) -> str | None:
        try:
            json.loads(line)
        except (ValueError, RecursionError) as error:
            return f"it is no JSON: {error}"
        return None

    yield from _line_batches(name, path, wrong)


def _line_batches(name: str, path: Path, wrong: Callable[[bytes], str | None]) -> Iterator[pa.RecordBatch]:
    bodies: list[bytes] = []
    numbers: list[int] = []
    held = 0
    with _opened(path) as content:
        for number, line in enumerate(_split(content), 1):
            body = line.rstrip(b"\r\n")
            if not body.strip():
                continue
            bodies.append(body)
            numbers.append(number)
            held += len(body)
            if len(bodies) >= _ROWS or held >= _BYTES:
                yield _bodies(name, bodies, numbers, wrong)
                bodies, numbers, held = [], [], 0
    if bodies:
        yield _bodies(name, bodies, numbers, wrong)


def _bodies(name: str, bodies: Sequence[bytes], numbers: Sequence[int], wrong: Callable[[bytes], str | None]) -> pa.RecordBatch:
    import pyarrow as pa

    found = [wrong(body) for body in bodies]
    errors = [None if error is None else f"line {number} of {name}: {error}" for number, error in zip(numbers, found, strict=True)]
    return pa.record_batch(
        {
            "body": pa.array(bodies, pa.binary()),
            "message_id": pa.array([f"{name}:{number}" for number in numbers]),
            "properties": pa.array([[(PATH, name), (LINE, str(number))] for number in numbers], pa.map_(pa.string(), pa.string())),
            ERROR: pa.array(errors, pa.string()),
        }
    )


def _split(content: Any) -> Iterator[bytes]:
    """Yield lines with their ends. One that is longer than a body may be is cut."""
    rest = b""
    while block := content.read(4 << 20):
        *lines, rest = (rest + bytes(block)).split(b"\n")
        yield from lines
        if len(rest) > 2 * _BYTES:
            raise MalformedError(f"it has a line of more than {2 * _BYTES:,} bytes")
    if rest:
        yield rest


def _csv(name: str, path: Path) -> Iterator[pa.RecordBatch]:
    """Yield rows, all columns as text; a row with another number of fields than the header is a record with an error."""
    import csv
    import io

    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    bad: list[tuple[str, str]] = []

    def refused(row: arrow_csv.InvalidRow) -> Literal["skip"]:
        bad.append((row.text or "", f"a row of {name} has {row.actual_columns} fields; the header has {row.expected_columns}"))
        return "skip"

    with _opened(path) as content:
        head = b"".join(_up_to_line(content))
    if not head.strip():
        return
    names = next(csv.reader(io.StringIO(head.decode("utf-8-sig"))))
    if len(set(names)) < len(names):
        raise MalformedError(f"its header names a column twice: {', '.join(names)}")
    with (
        _opened(path) as content,
        arrow_csv.open_csv(
            content,
            read_options=arrow_csv.ReadOptions(use_threads=False),
            parse_options=arrow_csv.ParseOptions(invalid_row_handler=refused, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        ) as reader,
    ):
        for batch in reader:
            if batch.num_rows:
                yield batch
            while bad:
                yield _wrong(name, *(bad[0][0].encode(), bad.pop(0)[1]))


def _up_to_line(content: Any) -> Iterator[bytes]:
    while block := bytes(content.read(64 << 10)):
        line, end, _ = block.partition(b"\n")
        yield line
        if end:
            return


def _parquet(name: str, path: Path) -> Iterator[pa.RecordBatch]:
    del name
    import pyarrow.parquet as pq

    from airflow_poison.core.store.table.row_groups import streamed

    with pq.ParquetFile(path) as file:
        yield from streamed(file, _ROWS)


def _whole(name: str, path: Path) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    with _opened(path) as content:
        body = bytes(content.read())
    yield pa.record_batch(
        {
            "body": pa.array([body], pa.binary()),
            "message_id": pa.array([name]),
            "properties": pa.array([[(PATH, name)]], pa.map_(pa.string(), pa.string())),
        }
    )


_READERS: Mapping[str, Callable[[str, Path], Iterator[pa.RecordBatch]]] = {
    "json": _json_lines,
    "lines": _lines,
    "csv": _csv,
    "parquet": _parquet,
    "whole": _whole,
}


def _opened(path: Path) -> Any:
    """Open a file, decompressed as its name says."""
    import pyarrow as pa

    return pa.input_stream(str(path), compression="detect")


def _wrong(name: str, content: bytes, error: str) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.record_batch(
        {
            "body": pa.array([content], pa.binary()),
            "message_id": pa.array([name]),
            "properties": pa.array([[(PATH, name)]], pa.map_(pa.string(), pa.string())),
            ERROR: pa.array([error], pa.string()),
        }
    )


def _beginning(path: Path) -> bytes:
    with path.open("rb") as content:
        return content.read(_BYTES)


def _can_be_opened(path: str) -> bool:
    try:
        with Path(path).open("rb"):
            return True
    except OSError:
        return False


def _matcher(pattern: str) -> re.Pattern[str]:
    """Return what names of objects match, as ``glob`` matches paths: ``*`` no slash, ``**/`` any folders or none."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]*\])", pattern)
    said = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(said.get(part) or (part.replace("[!", "[^") if part.startswith("[") else re.escape(part)) for part in parts))


def _one_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:500]


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"{text!r} is no instant; expected ISO 8601, as 2026-11-25T06:00:00+00:00. Nothing was sent.") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)
