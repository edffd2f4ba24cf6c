"""Files at a path that an author sends: read here, by the readers of ``Files``, where these read what Spark would; else Spark reads them."""

from __future__ import annotations

import csv
import glob
import logging
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

from airflow_poison.sources.bodies import alone, with_fields
from airflow_poison.sources.files import matcher
from airflow_poison.sources.readers import Layout, records, shown_name
from airflow_poison.sources.rows import to_messages
from airflow_poison.sources.source import ERROR
from airflow_poison.store.objects import Objects
from airflow_poison.values import json_text
from airflow_poison.values.errors import InputError, SettingError, StoreUnreachableError
from airflow_poison.values.libraries import pa
from airflow_poison.values.texts import counted, is_utf8

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_poison.values.mapping import ColumnMapping

_log = logging.getLogger(__name__)
_FORMATS = {"json": "json", "text": "lines", "csv": "csv", "parquet": "parquet"}
"""Formats as Spark names them, and the readers of them."""
_OPTIONS = {"sep": "delimiter", "delimiter": "delimiter", "encoding": "encoding", "charset": "encoding"}
_AS_HERE = {"multiline": ("true", "false"), "quote": ('"',), "escape": ('"',), "inferschema": ("false",)}
"""Options of CSV with values that say what the reader here does."""
_STORES = ("s3://", "gs://", "abfss://")
_ONLY_SPARK = frozenset("{}\\,")
"""Characters that mean something in Spark's paths, and nothing here."""
_UNPACKED_BY_SPARK = (".snappy", ".deflate")


@dataclass(frozen=True, slots=True)
class PathFiles:
    """Files that one send takes.

    :param path: of them all.
    :param names: as users see them, in the order in which they are read.
    :param numbered: the files are CSV without a header, whose columns are ``_c0`` and so on, as Spark has it.
    :param storage_options: of the object store, as Delta Lake names them.
    """

    path: str
    names: tuple[str, ...]
    layout: Layout
    numbered: bool = False
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def at(cls, path: str, format: str, options: Mapping[str, object], storage_options: Mapping[str, str]) -> PathFiles | None:  # noqa: A002
        """Return the files at a path; None: Spark has to read them, or to say that they are not there. Raises InputError.

        :param path: a file, a folder or a pattern: absolute, or the URI of an object store.
        :param format: as Spark names it.
        :param options: of Spark's reader.
        """
        if not is_utf8(path):
            raise InputError(f"path={path!r}: expected text in UTF-8; * stands for the name of a file or folder that is none. Nothing was sent.")
        given = {name.lower(): value for name, value in options.items()}
        layout = _layout(format.lower(), given)
        if layout is None or _ONLY_SPARK & set(path):
            return None
        try:
            names = _objects(path, storage_options) if path.startswith(_STORES) else _local(path)
        except StoreUnreachableError as error:
            _log.info("%s cannot be listed here (%s); Spark reads it.", path, error)
            return None
        if not names or any(name.endswith(_UNPACKED_BY_SPARK) for name in names):
            return None
        numbered = layout.format == "csv" and not _has_header(given)
        return cls(path, tuple(names), layout, numbered, storage_options)

    def messages(self, mapping: ColumnMapping, now: datetime) -> Iterator[pa.RecordBatch]:
        """Yield the records as messages, with a column ``ERROR``.

        Raises InputError for a mapping that does not fit and for a file that cannot be opened, StoreUnreachableError; then nothing was sent.
        """
        fields = MappedFields(mapping)
        for batch in chain.from_iterable(map(self._records, self.names)):
            if self.layout.format == "lines":
                yield of_text(batch, mapping, now)
            elif self.layout.format == "json":
                fields.see(batch)
                yield with_fields(batch, mapping, now)
            elif ERROR in batch.schema.names:
                yield batch
            else:
                yield from alone(batch, lambda rows: to_messages(rows, mapping, now), is_body=False)
        fields.check()

    def changed_at(self) -> datetime | None:
        """Return when the newest of the files was last changed; None: that is not known."""
        if not self.path.startswith(_STORES):
            return datetime.fromtimestamp(max(Path(name).stat().st_mtime for name in self.names), UTC)

        keys = {_split(name)[1] for name in self.names}
        folder = _split(self.path.partition("*")[0])[1].rpartition("/")[0]
        there = Objects.at(_split(self.path)[0], self.storage_options).list_all(folder) if folder else []
        return max((each.changed_at for each in there if each.path in keys), default=None)

    def _records(self, name: str) -> Iterator[pa.RecordBatch]:
        try:
            with _here(name, self.storage_options) as path:
                layout = replace(self.layout, header=_numbers(self.layout, path)) if self.numbered else self.layout
                yield from records(shown_name(name), layout, path)
        except OSError as error:
            raise InputError(
                f"{shown_name(name)} cannot be read: {error.strerror or error}. Check that it is there, and the rights. Nothing was sent."
            ) from error


def _layout(form: str, options: Mapping[str, object]) -> Layout | None:
    """Return how files are written; None: the readers here do not know such ones."""
    options = {name: value for name, value in options.items() if form != "csv" or str(value).lower() not in _AS_HERE.get(name, ())}
    given = {_OPTIONS[name]: str(value) for name, value in options.items() if name in _OPTIONS}
    if str(options.get("header", "false")).lower() not in {"true", "false"}:
        return None
    if form not in _FORMATS or len(given) + ("header" in options) < len(options) or (options and form != "csv"):
        return None
    try:
        return Layout(_FORMATS[form], **given)
    except SettingError:
        return None


def _has_header(options: Mapping[str, object]) -> bool:
    return str(options.get("header", "false")).lower() == "true"


def _numbers(layout: Layout, path: Path) -> tuple[str, ...]:
    """Return names for the columns of a CSV file, as many as its first row has."""
    lines = (line for batch in records("", replace(layout, format="lines", delimiter=","), path) for line in batch.column("body").to_pylist())
    first = next(csv.reader((cast("bytes", line).decode(errors="replace") + "\n" for line in lines), delimiter=layout.delimiter), [])
    return tuple(f"_c{at}" for at in range(len(first))) or ("_c0",)


# What is at a path ----------------------------------------------------------------------------------------------------


def _local(path: str) -> list[str]:
    """Return the files at a path of this machine, in the order of their names; none: there is nothing, or Spark has to read it."""
    plain = f"/{path.removeprefix('file:').lstrip('/')}" if path.startswith("file:") else path
    if not plain.startswith("/"):
        return []
    there = [Path(plain)] if Path(plain).exists() else [Path(name) for name in sorted(glob.glob(plain)) if not _is_hidden(Path(name).name)]  # noqa: PTH207
    found: list[str] = []
    passed_over: list[str] = []
    for each in there:
        if not each.is_dir():
            found.append(str(each))
            continue
        inside = [inner for inner in sorted(each.iterdir()) if not _is_hidden(inner.name)]
        folders = [inner.name for inner in inside if inner.is_dir()]
        if any("=" in name for name in folders):  # fields of its records
            return []
        passed_over += [str(each / name) for name in folders]
        found += [str(inner) for inner in inside if inner.is_file()]
    _warn_of(passed_over)
    return found


def _objects(uri: str, storage_options: Mapping[str, str]) -> list[str]:
    """Return the objects at a URI, in the order of their names. Raises StoreUnreachableError."""
    root, key = _split(uri)
    objects, wild = Objects.at(root, storage_options), glob.has_magic(key)
    if not wild and objects.is_there(key):
        return [uri]
    prefix = key.rstrip("/") if not wild else key[: min(key.index(sign) for sign in "*?[" if sign in key)].rpartition("/")[0]
    there = sorted(each.path for each in objects.list_all(prefix))
    if wild:
        expected = matcher(key)
        return [f"{root}/{name}" for name in there if expected.fullmatch(name) and not _is_hidden(name.rpartition("/")[2])]
    inside = [name.removeprefix(f"{prefix}/") for name in there if name.startswith(f"{prefix}/")]
    shown = [name for name in inside if not any(_is_hidden(part) for part in name.split("/"))]
    folders = {name.partition("/")[0] for name in shown if "/" in name}
    if any("=" in name for name in folders):
        return []
    _warn_of([f"{root}/{prefix}/{name}" for name in sorted(folders)])
    return [f"{root}/{prefix}/{name}" for name in shown if "/" not in name]


def _is_hidden(name: str) -> bool:
    """Whether a name is one that Spark passes over in a folder."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _warn_of(folders: list[str]) -> None:
    if folders:
        many = counted(len(folders), "folder", "folders")
        _log.warning(
            "Not sent: %s within the path, %s first. Send a folder of them by its own path, or all by a pattern.", many, shown_name(folders[0])
        )


def _split(uri: str) -> tuple[str, str]:
    """Return the URI of a bucket, and the key of an object."""
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key


@contextmanager
def _here(name: str, storage_options: Mapping[str, str]) -> Iterator[Path]:
    """Have a file on this machine while the block runs."""
    if not name.startswith(_STORES):
        yield Path(name)
        return

    root, key = _split(name)
    with TemporaryDirectory(prefix="airflow-poison-files-") as folder:
        path = Path(folder, Path(key).name)
        Objects.at(root, storage_options).download(key, path)
        yield path


# Lines ----------------------------------------------------------------------------------------------------------------


class MappedFields:
    """Fields of JSON that a mapping names, and that no record of a send has had so far."""

    def __init__(self, mapping: ColumnMapping) -> None:
        named = mapping.columns().items()
        self._missing = {name: parameter for name, parameter in named if name.isascii() and json_text.written(name) == f'"{name}"'}
        self._good = 0

    def see(self, records: pa.RecordBatch) -> None:
        """Look at records, with a ``body`` and an ``ERROR``."""
        self._good += records.column(ERROR).null_count
        if not self._missing:
            return
        for body in cast("list[bytes]", records.column("body").to_pylist()):
            for name in [name for name in self._missing if f'"{name}"'.encode() in body]:
                del self._missing[name]

    def check(self) -> None:
        """Raise InputError for a field that none of the records has: its name is a wrong one."""
        if self._missing and self._good:
            name, parameter = next(iter(self._missing.items()))
            raise InputError(
                f"{parameter}={name!r}: there is no such field in {counted(self._good, 'record', 'records')}. "
                "Name a field that they have, or leave it out. Nothing was sent."
            )


def of_text(lines: pa.RecordBatch, mapping: ColumnMapping, now: datetime, folders: pa.RecordBatch | None = None) -> pa.RecordBatch:
    """Return lines of text as messages: their bytes, or what a mapping makes of the column ``value``, as Spark names it.

    :param lines: records with a ``body`` and an ``ERROR``.
    :param folders: further columns, which have their values from the names of folders.
    """
    mapping.check(["value", *(folders.schema.names if folders is not None else ())])
    if mapping.body is None and folders is None:
        mapping = replace(mapping, body="value")
    if mapping.body == "value" and not replace(mapping, body=None).columns():
        return with_fields(lines, replace(mapping, body=None), now)
    errors = cast("list[str | None]", lines.column(ERROR).to_pylist())
    bodies = cast("list[bytes]", lines.column("body").to_pylist())
    more = folders.to_pylist() if folders is not None else [{}] * len(bodies)
    rows: list[bytes] = []
    for at, body in enumerate(bodies):
        try:
            rows.append(json_text.written({"value": body.decode(), **more[at]}).encode())
        except UnicodeDecodeError as error:
            errors[at] = errors[at] or f"it is no UTF-8: {error}"
            rows.append(body)
    columns = dict(zip(lines.schema.names, lines.columns, strict=True)) | {"body": pa.array(rows, pa.binary()), ERROR: pa.array(errors, pa.string())}
    return with_fields(pa.record_batch(list(columns.values()), names=list(columns)), mapping, now)
