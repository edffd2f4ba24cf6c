"""``Files``: each file that falls into a folder, or below a prefix of an object store, is taken once."""

from __future__ import annotations

import errno
import fnmatch
import logging
import os
import re
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from stat import S_ISLNK, S_ISREG
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, ClassVar

from airflow_poison.sources.frames import FileThere, Reading, folders_of, is_left_out, of_files, of_typed, with_folders
from airflow_poison.sources.readers import FORMATS, SPARKS, Layout, format_of_name, malformed, named_columns, records, shown_name
from airflow_poison.sources.rows import columns_of_bodies
from airflow_poison.sources.source import ERROR, NotOnSparkError, Reached, Source, Take
from airflow_poison.sources.text_lines import BYTES
from airflow_poison.store.objects import Objects
from airflow_poison.values.ddl import parse_ddl
from airflow_poison.values.errors import InputError, SettingError, SourceError, StoreUnreachableError
from airflow_poison.values.libraries import pa
from airflow_poison.values.texts import counted, is_utf8, on_spark, place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.sources.schemas import Schema
    from airflow_poison.sources.source import JsonValue, Position, Then

_log = logging.getLogger(__name__)
_UNREADABLE = "\n!"
"""Ends the key of a file that could not be opened: it is looked at again."""
_WILD = re.compile(r"[*?\[]")
_OF_A_NAME = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM})
"""Numbers of errors that concern one name; others are of the disk."""
_GRANT = "Grant this user the right to get objects (and to use their key), or restore them from the archive. Nothing was sent."
_NAME_LENGTH = 60
"""Characters of an object's name that a file of this machine can have, at four bytes each."""
_WHOLE = 64 << 20
"""Bytes that an object of text may have that a task of Spark gets whole."""
_OF_WRITERS = re.compile(
    r"(^|/)(_(temporary|delta_log|spark_metadata)/|_(SUCCESS|metadata|common_metadata)$|_(started|committed)_\d+$|[^/]*\._COPYING_$)", re.DOTALL
)
"""What writers keep beside the files that they write: marks, logs, and files that are not yet whole."""
_TYPED = ("parquet", *SPARKS)
"""Formats whose files have columns of their own, with types."""
_NAMED = 3
"""So many files are named of those that are passed over for one reason."""


@dataclass(slots=True)
class _Found:
    """A file as a list has it.

    :param path: as the system names it.
    :param version: identifies its content under this name. An object may change between the list and its reading: then of the content that
        was read.
    :param same: equal for all names of one file (device and inode); None: it has one name.
    :param linked: a link is on the way to it.
    """

    path: str
    size: int
    changed_at: float
    version: str
    same: tuple[int, int] | None = None
    linked: bool = False

    @property
    def shown(self) -> str:
        """The name that users see."""
        return shown_name(self.path)


class _PassedOver(dict[tuple[str, str], set[str]]):
    """Files that a take leaves alone, by the reason, with a text for one file and for several."""

    def add(self, one: str, many: str, name: str) -> None:
        """Note a file.

        :param one: the reason in a sentence on one file; ``many`` of several. Names follow at the colon, and stand at the end without one.
        """
        self.setdefault((one, many), set()).add(name)

    def sentences(self) -> tuple[str, ...]:
        """Return what was passed over, a sentence for each reason."""
        return tuple(_sentence(one if len(names) == 1 else many, sorted(names)) for (one, many), names in self.items())


def _sentence(reason: str, names: Sequence[str]) -> str:
    what, _, then = reason.partition(";")
    listed = ", ".join(names[:_NAMED]) + ", ..." * (len(names) > _NAMED)
    return f"{len(names):,} {what}: {listed}" + f";{then}" * bool(then)


@dataclass(frozen=True)
class Files(Source):
    """Files of a folder or an object store, each taken once, however late it comes: names that were taken are kept, no time says what is new.

    A record that is not what its format says is a message with an error, with its bytes. So is a file that cannot be read as a whole.

    :param pattern: ``/landing/*.json``, ``/landing/**/*.csv.gz``, ``s3://bucket/landing/*.parquet`` (also ``gs://``, ``abfss://``). ``*`` stands for
        any part of a name, ``**`` for folders. Compressed files (``.gz``, ``.bz2``, ``.zst``, ``.lz4``) are read as what they contain.
    :param format: ``json``: a JSON value on each line; ``lines``: text; both are a body for each line. ``csv`` (all columns are text), ``parquet``:
        rows with columns. ``whole``: each file is one body. ``orc`` and ``avro``: rows that Spark alone reads, in place. Empty: what the pattern
        says, as ``*.parquet`` or ``orders.csv/*`` do, else ``json``.
    :param delimiter: of CSV: one character between two cells.
    :param encoding: of ``json``, ``lines`` and ``csv`` where no byte order mark says another one: ``latin-1``, ``cp1252``. Bodies are UTF-8.
    :param header: of CSV: True: the first line that is not blank names the columns; the number of the line that does, from 1 on; or the names of the
        columns, where the files have none.
    :param rewritten: what is done with a file that was taken and has other content now: ``ignore``, or ``take`` all of it again.
    :param settled: how long a file of a folder has to be unchanged before it is taken: its writer may not have finished. Objects come whole.
    :param max_files: take at most so many at once.
    :param name: what the position is kept under. None: the pattern.
    :param schema: what each body is checked against or decoded with.
    :param storage_options: for an object store, as Delta Lake names them; others come from the environment.
    """

    pattern: str
    format: str = ""
    delimiter: str = ","
    encoding: str = "utf-8"
    header: bool | int | Sequence[str] = True
    rewritten: str = "ignore"
    settled: timedelta = timedelta(seconds=10)
    max_files: int | None = None
    name: str = ""
    schema: Schema | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    _allowed: ClassVar[Mapping[str, tuple[str, ...]]] = {"format": FORMATS, "rewritten": ("ignore", "take")}
    _of_a_layout: ClassVar[tuple[str, ...]] = ("delimiter", "encoding", "header")

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not self.pattern.strip() or not is_utf8(self.pattern):
            wanted = "where the files are, in UTF-8: /landing/*.json, s3://bucket/landing/*.json (* stands for other names, too)"
            raise SettingError("pattern", self.pattern, wanted)
        if not self.format:
            object.__setattr__(self, "format", _format_of(self.pattern))
        for setting, allowed in self._allowed.items():
            if getattr(self, setting) not in allowed:
                raise SettingError(setting, getattr(self, setting), ", ".join(allowed))
        if self.max_files is not None and (not isinstance(self.max_files, int) or self.max_files < 1):
            raise SettingError("max_files", self.max_files, "a number from 1 on, or None for all")
        if not isinstance(self.settled, timedelta) or self.settled < timedelta(0):
            raise SettingError("settled", self.settled, "a duration from 0 on: timedelta(seconds=10)")
        if not isinstance(self.name, str) or not is_utf8(self.name):
            raise SettingError("name", self.name, "a text in UTF-8, or none for the pattern")
        if not self._in_bucket and not Path(self.pattern).is_absolute():
            raise SettingError("pattern", self.pattern, "an absolute path, since tasks run in folders of their own; or the URI of an object store")
        object.__setattr__(self, "name", self.name or self.pattern)
        for setting in self._of_a_layout:
            object.__setattr__(self, setting, getattr(self._layout, setting))

    @property
    def columns(self) -> bool:  # type: ignore[override]
        """Whether records have columns."""
        return self.format in {"csv", "parquet", *SPARKS}

    def takes_from(self, table: str) -> bool:
        """Whether the pattern matches a file of the table, or one of its partitions."""
        wanted, there = matcher(place_of(self.pattern)), place_of(table)
        return any(wanted.fullmatch(f"{there}/{name}") for name in ("part-00000.snappy.parquet", "a=1/part-00000.snappy.parquet"))

    @property
    def asset_uri(self) -> str:
        """The folder above the first part of the pattern that stands for several names."""
        return self._fixed if self._in_bucket else f"file://{self._fixed}"

    def plan(self, position: Position, *, limit: int | None) -> Take | None:
        """Return the files that were not taken, the oldest first. Raises SourceError for a folder that is not there or may not be listed."""
        known = position.keys()
        taken = dict(zip(map(str, known["key"].to_pylist()), known["at"].to_pylist(), strict=True))
        passed = _PassedOver()
        new = [file for file in self._listed(taken, passed) if self._is_new(file, taken, passed)]
        return self._take(new[: self.max_files], limit, position.at, passed)

    def between(self, start: str, end: str) -> Take:
        """Return the files that were changed between two instants.

        :param start: ISO 8601, included; ``end`` is excluded.
        """
        first, last = (_instant(text).timestamp() for text in (start, end))
        passed = _PassedOver()
        found = [file for file in self._listed({}, passed) if first <= file.changed_at < last]
        return self._take(found, None, {}, passed) or _nothing({}, "no files")

    def describe(self, at: Mapping[str, JsonValue]) -> str:
        """Return how many files were taken."""
        return counted(int(at.get("files", 0)), "file was taken", "files were taken")  # type: ignore[arg-type]  # our own number

    # What is there ----------------------------------------------------------------------------------------------------

    @property
    def _layout(self) -> Layout:
        return Layout(self.format, self.delimiter, self.encoding, self.header)

    @property
    def _in_bucket(self) -> bool:
        return "://" in self.pattern

    @property
    def _fixed(self) -> str:
        fixed = self.pattern[: match.start()] if (match := _WILD.search(self.pattern)) else self.pattern
        return fixed.rpartition("/")[0] or "/"

    def _listed(self, taken: Mapping[str, object], passed: _PassedOver) -> list[_Found]:
        """Return the files there are, the oldest first; of several names of one file one that was taken, or the first that is no link."""
        found = self._objects(passed) if self._in_bucket else self._local(passed)
        if not _OF_WRITERS.search(self.pattern):
            found = (file for file in found if not _OF_WRITERS.search(file.path, len(self._fixed)))
        if self.format in SPARKS:
            found = self._for_spark(found, passed)
        first: dict[object, _Found] = {}
        for file in sorted(found, key=lambda file: (self._key(file) not in taken, file.linked, file.path)):
            if first.setdefault(file.same or file.path, file).path != file.path:
                passed.add("name leads to a file that has another name, too", "names lead to files that have other names, too", file.shown)
        return sorted(first.values(), key=lambda file: (file.changed_at, file.path))

    @staticmethod
    def _for_spark(files: Iterable[_Found], passed: _PassedOver) -> Iterator[_Found]:
        """Yield the files that Spark reads where it alone reads them."""
        for file in files:
            if is_left_out(file.path) or not is_utf8(file.path):
                why = "by its name (it begins with _ or ., has a colon, or is no UTF-8); rename it"
                passed.add(f"file is left out by Spark {why}", f"files are left out by Spark, each {why}", file.shown)
            elif not file.size:
                passed.add("file has no bytes", "files have no bytes", file.shown)
            else:
                yield file

    def _local(self, passed: _PassedOver) -> Iterator[_Found]:
        folder = Path(self._fixed)
        try:
            next(folder.iterdir(), None)
        except OSError as error:
            raise SourceError(
                f"The folder {folder} of source {self.name!r} cannot be listed: {error.strerror or error}. Check that it is mounted where the task "
                "runs, and the rights of this user. Nothing was sent."
            ) from error
        settled = self.settled.total_seconds()
        try:
            parts = [part for part in self.pattern.removeprefix(self._fixed).split("/") if part]
            for path, linked in _matching(self._fixed, parts, passed, linked=False):
                seen = _looked_at(path, passed)
                if seen is None or not S_ISREG(seen.st_mode):
                    continue
                now = time.time()
                age = now - seen.st_mtime if seen.st_mtime <= now else now - seen.st_ctime  # a date in the future says nothing
                if age < 0:
                    passed.add(
                        "file is dated in the future; later takes look again",
                        "files are dated in the future; later takes look again",
                        shown_name(path),
                    )
                elif age < settled:
                    since = f"changed less than {settled:g} s ago and may still be written; later takes look again"
                    passed.add(f"file was {since}", f"files were {since}", shown_name(path))
                else:
                    version = f"{seen.st_size}-{seen.st_mtime_ns}"
                    yield _Found(path, seen.st_size, seen.st_mtime, version, (seen.st_dev, seen.st_ino), linked)
        except OSError as error:
            raise SourceError(f"{error.filename} of source {self.name!r} cannot be listed: {error}. Nothing was sent; run the task again.") from error

    def _objects(self, passed: _PassedOver) -> Iterator[_Found]:
        scheme, _, rest = self.pattern.partition("://")
        bucket, _, wanted = rest.partition("/")
        expected, root = matcher(wanted), f"{scheme}://{bucket}"
        try:
            for each in Objects.at(root, self.storage_options).list_all(self._fixed.removeprefix(root).strip("/")):
                if not expected.fullmatch(each.path):
                    continue
                if each.is_odd:
                    odd = "has a name that object stores' clients do not read (//, a control character, ..); rename"
                    passed.add(f"object {odd} it", f"objects {odd.replace('has a name', 'have names')} them", repr(f"{root}/{each.path}"))
                else:
                    yield _Found(f"{root}/{each.path}", each.size, each.changed_at.timestamp(), each.tag)
        except StoreUnreachableError as error:
            raise SourceError(f"Source {self.name!r} cannot be listed: {error} Nothing was sent.") from error

    def _is_new(self, file: _Found, taken: Mapping[str, object], passed: _PassedOver) -> bool:
        key = self._key(file)
        if key in taken:
            if self.rewritten == "ignore" and taken[key] != int(file.changed_at):
                passed.add(
                    "file was rewritten since it was taken; rewritten='take' takes it again",
                    "files were rewritten since they were taken; rewritten='take' takes them again",
                    file.shown,
                )
            return False
        if key + _UNREADABLE not in taken or self._can_be_opened(file.path):
            return True
        passed.add("file cannot be opened by this user", "files cannot be opened by this user", file.shown)
        return False

    def _can_be_opened(self, path: str) -> bool:
        if self._in_bucket:
            objects, name = self._object(path)
            try:
                return objects.may_be_read(name)
            except StoreUnreachableError as error:
                raise SourceError(f"{path} of source {self.name!r} cannot be read: {error} Nothing was sent.") from error
        try:
            with Path(path).open("rb"):
                return True
        except OSError:
            return False

    def _object(self, uri: str) -> tuple[Objects, str]:
        """Return the bucket of an object, and its name there."""
        scheme, _, rest = uri.partition("://")
        bucket, _, name = rest.partition("/")
        return Objects.at(f"{scheme}://{bucket}", self.storage_options), name

    def _key(self, file: _Found) -> str:
        return file.shown if self.rewritten == "ignore" else f"{file.shown}\n{file.version}"

    # What is in it ----------------------------------------------------------------------------------------------------

    def _take(self, files: Sequence[_Found], limit: int | None, at: Mapping[str, JsonValue], passed: _PassedOver) -> Take | None:
        if not files:
            return replace(_nothing(at), passed_over=passed.sentences()) if passed else None
        done: list[tuple[str, int]] = []
        by_spark = list[_Found]()

        def batches() -> Iterator[pa.RecordBatch]:
            if self.format in SPARKS:
                raise InputError(
                    f"format={self.format!r} of source {self.name!r}: Spark alone reads such files, in place. Receive with source= and transform=, "
                    "or send a DataFrame. Nothing was sent."
                )
            done.clear()
            by_spark.clear()
            refused = list[_RefusedError]()
            yield from self._each(files, limit, done, refused)
            if refused and self._in_bucket and not done and not at.get("files"):
                raise SourceError(f"No object of source {self.name!r} can be read. {refused[0].reason}. {_GRANT}")
            for each in refused:
                yield malformed(each.file.shown, b"", f"{each.reason}. It is taken when this user may read it")
                done.append((self._key(each.file) + _UNREADABLE, int(each.file.changed_at)))

        def reached() -> Reached:

            for file in by_spark:
                self._check_unchanged(file)
                if self._in_bucket and ((there := (of := self._object(file.path))[0].look_at(of[1])) is None or there.tag != file.version):
                    raise SourceError(f"{file.shown} of source {self.name!r} was changed while it was read. Nothing was sent; run the task again.")
            keys = pa.table({"key": pa.array([key for key, _ in done], pa.string()), "at": pa.array([when for _, when in done], pa.int64())})
            return Reached({"files": int(at.get("files", 0)) + len(done)}, keys)  # type: ignore[arg-type]  # our own number

        def rows(spark: SparkSession, then: Then | None, *, checked: bool = False) -> DataFrame:
            found = self._in_place(spark, files, then, checked=checked)
            done[:] = [(self._key(file), int(file.changed_at)) for file in files]
            by_spark[:] = files
            return found

        size = sum(file.size for file in files)
        amount = f"{size / 2**20:,.1f} MiB" if size >= 2**20 else counted(size, "byte", "bytes")
        what = f"{counted(len(files), 'file', 'files')}, {amount}"
        why = self._why_not_in_place(files)
        alone, passed_over = self.format in SPARKS, passed.sentences()
        native = rows if alone or not why else None
        checked = partial(rows, checked=True) if self.format in _TYPED else None
        return Take(what=what, batches=batches, reached=reached, rows=native, why=why, alone=alone, checked=checked, passed_over=passed_over)

    def _why_not_in_place(self, files: Sequence[_Found]) -> str:
        if self.format in {"lines", "whole"}:
            return f"records of format={self.format!r} have no columns"
        if self._in_bucket and self.format in {"csv", "json"} and any(file.size > _WHOLE for file in files):
            return f"Spark gets text of an object store as whole objects, and one has more than {_WHOLE >> 20} MiB"
        if self._in_bucket and self.format in {"csv", "json"} and any(is_left_out(file.path) for file in files):
            return "Spark's readers leave out objects whose names begin with _ or ., or have a colon beside one of {}[]*?\\"
        return "" if self._in_bucket or all(self._can_be_opened(file.path) for file in files) else "this user cannot open all of its files"

    def _in_place(self, spark: SparkSession, files: Sequence[_Found], then: Then | None, *, checked: bool = False) -> DataFrame:
        """Return rows as Spark reads them. Raises NotOnSparkError.

        :param checked: each file is read to its end before, and one that cannot be is a record.
        """
        largest_first = sorted(files, key=lambda file: -file.size)
        there = [FileThere(file.shown, on_spark(file.path), self._folders(file)) for file in largest_first]
        base = on_spark(self._fixed)
        if self.format in _TYPED:
            found = {on_spark(file.path): file for file in files}
            here = {path: self._read_here(each) for path, each in found.items() if self._in_bucket and (not each.size or is_left_out(each.path))}
            unread = partial(self._unread, found) if self.format in SPARKS else None
            return of_typed(
                spark, there, self._layout, then, Reading(self.format, base, here, partial(self._columns, found), unread, checked=checked)
            )
        names: dict[str, None] = {}
        if then is None:
            names = dict.fromkeys(name for file in files for name in (*self._named(file), *self._folders(file)))
            if not names or len({name.lower() for name in names}) < len(names):
                raise NotOnSparkError(f"its columns are {', '.join(map(repr, names)) or 'not named'}: Spark wants each name once")
        return of_files(spark, there, self._layout, [*names], then)

    def _read_here(self, file: _Found) -> Iterator[pa.RecordBatch]:
        """Yield the records of an object. Raises SourceError."""
        refused = list[_RefusedError]()
        yield from self._each([file], None, [], refused)
        if refused:
            raise SourceError(f"{refused[0].reason}. {_GRANT}")

    def _columns(self, found: Mapping[str, _Found], there: FileThere) -> str:
        """Return the columns of a file as DDL; none where no row of it can be read. Raises NotOnSparkError for names that are one for Spark."""
        rows = next((batch.schema for batch in self._read_here(found[there.path]) if ERROR not in batch.schema.names), None)
        columns = "" if rows is None else columns_of_bodies(rows)
        try:
            parse_ddl(columns or "none int")
        except SettingError as error:
            raise NotOnSparkError(f"{there.name} has columns that are one for Spark: {error}") from error
        return columns

    def _unread(self, found: Mapping[str, _Found], there: FileThere, why: str) -> Iterator[pa.RecordBatch]:
        """Yield the record of a file that Spark cannot read, and this process can. Raises SourceError for one that it cannot, either."""
        file = found[there.path]
        try:
            with self._here(file) as path, path.open("rb") as content:
                beginning = content.read(BYTES)
                while content.read(1 << 20):
                    pass
        except OSError as error:
            raise SourceError(f"{file.shown} of source {self.name!r} cannot be read: {error}. Nothing was sent; run the task again.") from error
        yield malformed(file.shown, beginning, f"{file.shown} cannot be read as {self.format}: {why}")

    def _folders(self, file: _Found) -> Mapping[str, str | None]:
        """Return the columns that the folders of a file make."""
        return folders_of(file.path, self._fixed) if self.columns else {}

    def _named(self, file: _Found) -> Sequence[str]:
        """Return the columns that a file of CSV names. Raises NotOnSparkError for one that cannot be opened."""
        try:
            with self._here(file) as path:
                return named_columns(self._layout, path)
        except OSError as error:
            raise NotOnSparkError(f"{file.shown} cannot be opened: {error.strerror or error}") from error

    def _each(
        self, files: Sequence[_Found], limit: int | None, done: list[tuple[str, int]], refused: list[_RefusedError]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of files up to a limit; note which were read, and which this user may not read."""
        sent = 0
        for file in files:
            if limit is not None and sent >= limit:
                return
            try:
                for batch in self._records(file):
                    sent += batch.num_rows
                    yield batch
            except _GoneError:
                _log.warning("%s of source %r was removed before it was read: it was not taken.", file.shown, self.name)
            except _RefusedError as error:
                refused.append(error)
            else:
                done.append((self._key(file), int(file.changed_at)))

    def _records(self, file: _Found) -> Iterator[pa.RecordBatch]:
        """Yield the records of a file. Raises SourceError when the file changes meanwhile, or the disk or the store does not answer."""
        begun = False
        try:
            with self._here(file) as path:
                for batch in records(file.shown, self._layout, path):
                    begun = True
                    yield with_folders(batch, self._folders(file))
                self._check_unchanged(file)
        except FileNotFoundError as error:
            if not begun:
                raise _GoneError from error
            raise SourceError(f"{file.shown} of source {self.name!r} was removed while it was read. Nothing was sent; run the task again.") from error
        except StoreUnreachableError as error:
            raise SourceError(f"{file.shown} of source {self.name!r} cannot be read: {error} Nothing was sent.") from error
        except PermissionError as error:
            raise _RefusedError(file, error) from error
        except OSError as error:
            raise SourceError(f"{file.shown} of source {self.name!r} cannot be read: {error}. Nothing was sent; run the task again.") from error

    @contextmanager
    def _here(self, file: _Found) -> Iterator[Path]:
        """Have a file on this machine while the block runs."""
        if not self._in_bucket:
            yield Path(file.path)
            return
        objects, name = self._object(file.path)
        with TemporaryDirectory(prefix="airflow-poison-files-") as folder:
            path = Path(folder, Path(name).name[-_NAME_LENGTH:])
            read = objects.download(name, path)
            file.version, file.changed_at = read.tag, read.changed_at.timestamp()
            yield path

    def _check_unchanged(self, file: _Found) -> None:
        if self._in_bucket:
            return
        try:
            seen = Path(file.path).stat()
        except OSError as error:
            raise SourceError(f"{file.shown} of source {self.name!r} was removed while it was read. Nothing was sent; run the task again.") from error
        if f"{seen.st_size}-{seen.st_mtime_ns}" != file.version:
            raise SourceError(
                f"{file.shown} of source {self.name!r} was changed while it was read: its writer had not finished. Nothing was sent; the next run "
                f"takes it when it has been unchanged for {self.settled.total_seconds():g} s (settled=). Write files elsewhere; move them in when "
                "they are whole."
            )


class _GoneError(Exception):
    """A file was removed before it was read."""


class _RefusedError(Exception):
    """This user may not read a file, or the file is archived."""

    def __init__(self, file: _Found, error: PermissionError) -> None:
        super().__init__(str(error))
        self.file, self.reason = file, f"{file.shown} cannot be opened: {error.strerror}"


def _nothing(at: Mapping[str, JsonValue], what: str = "") -> Take:
    return Take(what=what, batches=lambda: iter(()), reached=lambda: Reached(at))


def _matching(folder: str, parts: Sequence[str], passed: _PassedOver, *, linked: bool) -> Iterator[tuple[str, bool]]:
    """Yield the names that a pattern matches, and whether a link is on the way. ``**`` goes into no link; ``*`` and ``**`` into no hidden name.

    :param parts: of the pattern, below the folder.
    """
    part, rest = parts[0], parts[1:]
    if part == "**" and rest:
        yield from _matching(folder, rest, passed, linked=linked)
    elif not _WILD.search(part):
        path = os.path.join(folder, part)  # noqa: PTH118  (a million of them)
        if rest:
            yield from _matching(path, rest, passed, linked=linked or _is_link(path))
        elif os.path.lexists(path):
            yield path, linked or _is_link(path)
        return
    wanted = re.compile(fnmatch.translate("*" if part == "**" else part)).match
    for entry in _entries(folder, passed):
        if (entry.name.startswith(".") and not part.startswith(".")) or not wanted(entry.name):
            continue
        link = linked or entry.is_symlink()
        if part == "**" and entry.is_dir(follow_symlinks=False):
            yield from _matching(entry.path, parts, passed, linked=linked)
        elif not rest:
            yield entry.path, link
        elif part != "**" and _is_folder(entry):
            yield from _matching(entry.path, rest, passed, linked=link)


def _entries(folder: str, passed: _PassedOver) -> Sequence[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        if error.errno not in _OF_A_NAME:
            raise
        passed.add("folder cannot be listed", "folders cannot be listed", f"{shown_name(folder)} ({error.strerror})")
        return ()


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # a circle of links
        if error.errno not in _OF_A_NAME:
            raise
        return False


def _is_link(path: str) -> bool:
    try:
        return S_ISLNK(os.lstat(path).st_mode)
    except OSError as error:
        if error.errno not in _OF_A_NAME:
            raise
        return False


def _looked_at(path: str, passed: _PassedOver) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116  (a million of them)
    except OSError as error:
        if error.errno not in _OF_A_NAME:
            raise
        if not (error.errno in {errno.ENOENT, errno.ENOTDIR} and not _is_link(path)):  # else it was removed since it was listed
            passed.add("name leads to no file", "names lead to no file", f"{shown_name(path)} ({error.strerror})")
        return None


def _format_of(pattern: str) -> str:
    """Return the format that a pattern says, by the last part that has an ending; else ``json``. Raises SettingError for files that are not read."""
    *folders, name = pattern.split("/")
    try:
        found = format_of_name(name)
    except ValueError as ending:
        raise SettingError("format", "", f"{', '.join(FORMATS)}; {ending} in pattern={pattern!r} is the ending of none of them") from ending
    if found is None and "." not in name:
        with suppress(ValueError):
            found = format_of_name(next((folder for folder in reversed(folders) if "." in folder), ""))
    return found or "json"


def matcher(pattern: str) -> re.Pattern[str]:
    """Return what names of objects match, as ``glob`` matches paths: ``*`` no slash, ``**/`` any folders or none."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]*\])", pattern)
    patterns = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(patterns.get(part) or (part.replace("[!", "[^") if part.startswith("[") else re.escape(part)) for part in parts))


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"{text!r} is no instant; expected ISO 8601, as 2026-11-25T06:00:00+00:00. Nothing was sent.") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)
