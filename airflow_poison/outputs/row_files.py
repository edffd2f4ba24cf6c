"""Rows of an output that Spark has written below it already: files that become part of the table, or are read where it cannot take them as they are.

They lie in ``HIDDEN``, which VACUUM passes over, until the table's log names them. Moving one to the table's files and adding it to the log are two
steps: a process that dies in between is repeated by the next one, which finds the file under its new name. An object store has no moves: there a file
is copied, and the first one removed when the log names the copy.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, cast

from airflow_poison.store.objects import Objects, is_unencrypted, side_by_side
from airflow_poison.values.errors import StoreUnreachableError
from airflow_poison.values.libraries import pa, pq

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from deltalake import CommitProperties, DeltaTable

    from airflow_poison.outputs.output import Output

HIDDEN = "_poison"
"""The folder below an output in which rows are written: ``_poison/<queue>/<run>``."""
DEPTH = 3
PARTITION = "_poison_partition"
"""The column by which a job writes rows of one partition apart from others."""
OWN = frozenset({"_poison", "_poison_row", "_poison_id", "_poison_failed", PARTITION, "poison_place"})
"""Columns of ours in such files, which are part of no table."""
_BATCH = 64_000


class FileOfRows(NamedTuple):
    """A Parquet file with rows of an output.

    :param path: below the output.
    """

    path: str
    rows: int


class Files(Protocol):
    """The files below an output, or below a folder in which a job writes."""

    def is_there(self, path: str) -> bool:
        """Whether there is a file."""

    def names(self, folder: str) -> list[str]:
        """Return the paths of all files in a folder, in their order."""

    def put(self, path: str, file: Path) -> None:
        """Have a file of this machine at a path; it may be there already."""

    def move(self, path: str, target: str) -> None:
        """Have the file at another path. Raises FileNotFoundError."""

    def opened(self, path: str) -> Path | BinaryIO:
        """Return what Parquet is read from. Raises FileNotFoundError."""

    def described(self, path: str) -> tuple[int, int]:
        """Return the bytes of a file, and when it was changed, milliseconds. Raises FileNotFoundError."""

    def runs(self, folder: str, before: datetime) -> list[str]:
        """Return the folders in a folder that were written before an instant."""

    def remove(self, folder: str) -> None:
        """Remove a folder, if it is there; an empty text stands for all."""


class Place(NamedTuple):
    """A folder in which a job writes rows.

    :ivar uri: as Spark names it.
    """

    uri: str
    files: Files


def files_in(uri: str, options: Mapping[str, str]) -> Files:
    """Return the files in a folder of this machine, or below the URI of an object store."""
    return _InBucket(Objects.at(uri, options)) if "://" in uri else _OnDisk(Path(uri))


@dataclass(frozen=True, slots=True)
class _OnDisk:
    root: Path

    def is_there(self, path: str) -> bool:
        return (self.root / path).exists()

    def names(self, folder: str) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in (self.root / folder).rglob("*") if path.is_file())

    def put(self, path: str, file: Path) -> None:
        if file != (target := self.root / path):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(file, target)

    def move(self, path: str, target: str) -> None:
        (self.root / path).rename(self.root / target)

    def opened(self, path: str) -> Path:
        return self.root / path

    def described(self, path: str) -> tuple[int, int]:
        found = (self.root / path).stat()
        return found.st_size, int(found.st_mtime * 1_000)

    def runs(self, folder: str, before: datetime) -> list[str]:
        return [each.name for each in (self.root / folder).glob("*") if each.stat().st_mtime < before.timestamp()]

    def remove(self, folder: str) -> None:
        shutil.rmtree(self.root / folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _InBucket:
    objects: Objects

    def is_there(self, path: str) -> bool:
        return self.objects.is_there(path)

    def names(self, folder: str) -> list[str]:
        return sorted(each.path for each in self.objects.list(f"{folder}/"))

    def put(self, path: str, file: Path) -> None:
        self.objects.upload(path, file)

    def move(self, path: str, target: str) -> None:
        self.objects.copy(path, target)

    def opened(self, path: str) -> BinaryIO:
        return self.objects.opened(path)

    def described(self, path: str) -> tuple[int, int]:
        found = self.objects.look_at(path)
        if found is None:
            raise FileNotFoundError(path)
        return found.size, int(found.changed_at.timestamp() * 1_000)

    def runs(self, folder: str, before: datetime) -> list[str]:
        newest: dict[str, datetime] = {}
        for each in self.objects.list(f"{folder}/"):
            if not each.size:  # Hadoop's mark of a folder, which obstore does not remove
                continue
            name = each.path.removeprefix(f"{folder}/").partition("/")[0]
            newest[name] = max(newest.get(name, each.changed_at), each.changed_at)
        return [name for name, changed in newest.items() if changed < before]

    def remove(self, folder: str) -> None:
        with suppress(StoreUnreachableError):  # a later run does it
            self.objects.remove([each.path for each in self.objects.list(f"{folder}/" if folder else "")])


def of_delta(options: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return options for delta-rs, which needs an explicit option to allow unencrypted requests."""
    if not options:
        return None
    return {"allow_http": "true", **options} if is_unencrypted(options) else dict(options)


def columns_of(table: DeltaTable) -> pa.Schema:
    """Return the columns of a table."""
    found: pa.Schema = pa.schema(table.schema().to_arrow())  # type: ignore[arg-type]  # it has Arrow's C interface
    return found


def may_be_added(output: Output, table: DeltaTable | None, files: Sequence[FileOfRows], options: Mapping[str, str]) -> bool:
    """Whether files can become part of a table as they are: it wants nothing of rows but their types, and the files have these types.

    :param table: None: there is none yet.
    :param options: of the object store that the output is in.
    """
    from airflow_poison.outputs.table_rules import rules_of

    if output.keys or output.provenance or len({_moved_to(file) for file in files}) < len(files):  # none takes the place of another one
        return False
    columns = set(schemas(output, files, options))
    if table is None or len(columns) > 1:
        plain = len(columns) == 1 and all(map(_is_plain, (field for given in columns for field in given)))
        return plain and (output.columns is None or _are_of(output.columns, *columns))
    rules, maps = rules_of(table, local=True), table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
    if rules.conditions or rules.generated or output.evolve or maps:  # maps: its files call columns otherwise than the table does
        return False
    there = columns_of(table)
    known = {field.name: field for field in there}
    given = {field.name: field for each in columns for field in each}
    if not given.keys() <= known.keys() or not all(field.nullable for field in there):
        return False
    fits = all(_is_plain(known[name]) and _same(known[name].type, field.type) for name, field in given.items())
    if not fits or not all(name in given and names_plainly(known[name].type) for name in rules.partitions):
        return False
    below = files_in(output.uri, options)
    return None not in side_by_side(lambda file: _partition(below, _place(below, file), rules.partitions), files)


def add(output: Output, table: DeltaTable | None, files: Sequence[FileOfRows], properties: CommitProperties, options: Mapping[str, str]) -> None:
    """Make files part of a table, which is made when it is missing. Raises what delta-rs raises.

    :param options: of the object store that the output is in.
    """
    from deltalake import Schema
    from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

    from airflow_poison.outputs.values import all_nullable

    below = files_in(output.uri, options)
    partitions: list[str] = [] if table is None else list(table.metadata().partition_columns)

    def action(file: FileOfRows) -> AddAction | RemoveAction:
        path = _moved(below, file)
        size, changed = below.described(path)
        partition = _partition(below, path, partitions)
        assert partition is not None, "it may be added"
        return AddAction(path, size, partition, changed, True, _statistics(below, path, partitions))  # noqa: FBT003

    actions = side_by_side(action, [file for file in files if file.rows])
    if table is None:
        schema = output.columns or all_nullable(_columns(below, files[0]))
        create_table_with_add_actions(
            output.uri,
            Schema.from_arrow(schema),
            cast("list[AddAction]", actions),
            mode="error",
            commit_properties=properties,
            storage_options=of_delta(options),
        )
    else:
        table.create_write_transaction(actions, "append", table.schema(), partitions, commit_properties=properties)
    remove(output, files, options)


def schemas(output: Output, files: Sequence[FileOfRows], options: Mapping[str, str]) -> list[pa.Schema]:
    """Return the columns of files. Raises FileNotFoundError."""
    below = files_in(output.uri, options)
    return side_by_side(lambda file: _columns(below, file), files)


def read(output: Output, file: FileOfRows, options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file. Raises FileNotFoundError."""
    below = files_in(output.uri, options)
    with pq.ParquetFile(below.opened(_place(below, file)), coerce_int96_timestamp_unit="us", page_checksum_verification=True) as content:
        yield from content.iter_batches(_BATCH, columns=[name for name in content.schema_arrow.names if name not in OWN])


def remove(output: Output, files: Sequence[FileOfRows], options: Mapping[str, str]) -> None:
    """Remove what is left of the folders in which files were written."""
    below = files_in(output.uri, options)
    for folder in {"/".join(file.path.split("/")[:DEPTH]) for file in files}:
        below.remove(folder)


def _place(below: Files, file: FileOfRows) -> str:
    """Return where a file is: where it was written, or among the table's."""
    moved = _moved_to(file)
    return moved if not below.is_there(file.path) and below.is_there(moved) else file.path


def _moved_to(file: FileOfRows) -> str:
    *folders, name = file.path.split("/")  # a task's files have one name in all partitions
    return "-".join([*(folder.partition("=")[2] for folder in folders if folder.startswith(f"{PARTITION}=")), name])


def _moved(below: Files, file: FileOfRows) -> str:
    """Move a file to the table's, unless it is there. Raises FileNotFoundError."""
    target = _moved_to(file)
    if not below.is_there(target):
        below.move(file.path, target)
    return target


def _partition(below: Files, path: str, names: Sequence[str]) -> dict[str, str | None] | None:
    """Return the values of the partition that a file is of, as Delta's log has them; None: its rows are of several, or Python has no such date."""
    if not names:
        return {}
    found: dict[str, str | None] = {}
    with pq.ParquetFile(below.opened(path)) as file:
        columns = file.read(columns=list(names))
    for name in names:
        try:
            values: list[Any] = columns[name].unique().to_pylist()
        except (ValueError, OverflowError):
            return None
        if len(values) != 1:
            return None
        found[name] = None if values[0] is None else _in_log(values[0])
    return found


def names_plainly(kind: Any) -> bool:
    """Whether Delta's log has a value of a type as ``_in_log`` writes it."""
    of = pa.types
    is_instant = of.is_timestamp(kind) and kind.tz is not None
    return bool(is_instant or of.is_integer(kind) or of.is_boolean(kind) or of.is_date(kind) or of.is_string(kind) or of.is_large_string(kind))


def _in_log(value: object) -> str:
    if isinstance(value, datetime):  # without a zone it would be one of Spark's session
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").zfill(27)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _columns(below: Files, file: FileOfRows) -> pa.Schema:

    schema = pq.read_schema(below.opened(_place(below, file)))
    return pa.schema([field for field in schema if field.name not in OWN])


def _is_plain(field: pa.Field[Any]) -> bool:
    """Whether a column needs no feature of a table."""
    kind = field.type
    if pa.types.is_nested(kind):
        return all(_is_plain(kind.field(place)) for place in range(kind.num_fields))
    return not (pa.types.is_null(kind) or (pa.types.is_timestamp(kind) and (kind.tz is None or kind.unit != "us")))


def _are_of(declared: pa.Schema, given: pa.Schema) -> bool:
    """Whether columns are of the declared ones, none of which must have values."""
    known = {field.name: field.type for field in declared if field.nullable}
    return len(known) == len(declared) and all(field.name in known and _same(known[field.name], field.type) for field in given)


def _same(one: Any, other: Any) -> bool:
    """Whether two types are the same but for names of list elements and sizes of offsets, which Delta does not have.

    :param one: of the table: parts of it that may be null may have values in all rows.
    """
    of = pa.types

    def part(mine: Any, theirs: Any) -> bool:
        return (mine.nullable or not theirs.nullable) and _same(mine.type, theirs.type)

    if of.is_struct(one):
        return bool(of.is_struct(other)) and one.names == other.names and all(part(one.field(name), other.field(name)) for name in one.names)
    if of.is_map(one):
        return bool(of.is_map(other)) and _same(one.key_type, other.key_type) and part(one.item_field, other.item_field)
    if of.is_list(one) or of.is_large_list(one):
        return bool(of.is_list(other) or of.is_large_list(other)) and part(one.value_field, other.value_field)
    plain = {pa.large_string(): pa.string(), pa.string_view(): pa.string(), pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary()}
    return bool(plain.get(one, one) == plain.get(other, other))


def _statistics(below: Files, path: str, partitions: Collection[str] = ()) -> str:
    """Return the statistics of a file as Delta has them: rows, and nulls, least and greatest values of plain columns that name no partition."""
    least, greatest, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    with pq.ParquetFile(below.opened(path)) as file:
        footer, schema = file.metadata, file.schema_arrow
    for place in range(footer.num_columns):
        name = footer.schema.column(place).path
        found: list[Any] = [footer.row_group(group).column(place).statistics for group in range(footer.num_row_groups)]
        if (
            name in OWN
            or name in partitions
            or "." in name
            or name not in schema.names
            or not all(each is not None and each.has_null_count for each in found)
        ):
            continue
        nulls[name] = sum(each.null_count for each in found)
        kind = schema.field(name).type
        some = [each for each in found if each.has_min_max]
        if some and (pa.types.is_integer(kind) or pa.types.is_date(kind)):
            with suppress(ValueError, OverflowError):  # dates of years that Python does not have: the column has no ends then
                least[name], greatest[name] = (_written(of(getattr(each, key) for each in some)) for of, key in ((min, "min"), (max, "max")))
    return json.dumps({"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls})


def _written(value: Any) -> Any:
    return value if isinstance(value, int) else value.isoformat()
