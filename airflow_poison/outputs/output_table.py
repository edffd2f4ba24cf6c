"""The Delta tables where returned rows land: what columns one has, and rows added or merged, once for each key."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_poison.outputs import row_files
from airflow_poison.outputs.table_rules import rules_of
from airflow_poison.outputs.values import all_nullable, cast, filled, without_unknown
from airflow_poison.store import disk
from airflow_poison.values.ddl import quoted
from airflow_poison.values.errors import OutputError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import np, pa, pc
from airflow_poison.values.texts import first_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalake import CommitProperties, DeltaTable
    from numpy.typing import NDArray

    from airflow_poison.outputs.output import Output
    from airflow_poison.outputs.row_files import FileOfRows
    from airflow_poison.outputs.table_rules import TableRules

_KEY, _LEFT_OUT = "poison.key", "poison.left_out"
_TRIES = 50
_NOT_SUPPORTED = "Unsupported table features"
"""What delta-rs says of a table that it does not write to, with the error of a commit that others have overtaken."""
_FORCED = 20
"""Entries of the log that are forced to disk behind a new one: others may have made them without."""


def columns_of(uri: str, options: Mapping[str, str] | None = None) -> pa.Schema | None:
    """Return the columns of a table; None when there is none. Raises OutputError.

    :param options: of the object store that the table is in; what is not there comes from the environment.
    """
    table = _opened(uri, row_files.of_delta(options))
    return None if table is None else row_files.columns_of(table)


def table_of(uri: str, options: Mapping[str, str] | None = None) -> tuple[pa.Schema, TableRules, bool] | None:
    """Return the columns of a table, what it wants of its rows, and whether rows are never replaced; None when there is none. Raises OutputError.

    :param options: see ``columns_of``.
    """
    table = _opened(uri, row_files.of_delta(options))
    if table is None:
        return None
    is_append_only = str(table.metadata().configuration.get("delta.appendOnly", "")).lower() == "true"
    return row_files.columns_of(table), rules_of(table, local="://" not in uri), is_append_only


def land(
    output: Output,
    batches: Sequence[pa.RecordBatch],
    application: str,
    number: int,
    key: str,
    *,
    files: Sequence[FileOfRows] = (),
    left_out: str = "",
    options: Mapping[str, str] | None = None,
) -> str:
    """Add rows to a table, which is made when it is missing, or merge them by the output's keys, unless that was done before.

    A process that dies in between has done all or nothing. Of racers one wins, and the others see it.

    :param application: names what lands here, in the order of ``number``: Delta's application transaction, which settles races.
    :param key: names these rows. It stands in the table's history, where numbers that begin again (a restored queue) are distinguished from
        rows that are there already.
    :param files: with further rows; they become the table's own where it takes them as they are.
    :param left_out: which messages' rows are not among them, and why: kept in the table's history, which decides.
    :param options: see ``columns_of``. They are no part of the output, which is written down and travels to executors.
    Returns what was left out by the commit that counts. Raises OutputError: nothing was added.
    """
    kept = _land(output, batches, application, number, key, left_out, files=files, options=options or {})
    if "://" not in output.uri:
        _force(Path(output.uri), key)
    return kept


def _land(  # noqa: PLR0917
    output: Output,
    batches: Sequence[pa.RecordBatch],
    application: str,
    number: int,
    key: str,
    left_out: str,
    *,
    files: Sequence[FileOfRows],
    options: Mapping[str, str],
) -> str:
    from deltalake.exceptions import CommitFailedError

    delta = row_files.of_delta(options)
    for _ in range(_TRIES):
        table = _opened(output.uri, delta)
        chosen, at = application, number
        if table is not None and (table.transaction_version(application) or -1) >= number:
            if (there := _there(table, key, output.uri)) is not None:
                row_files.remove(output, files, options)
                return there
            chosen, at = f"{application}:{key}", 0
        reach("output.land.before_write")
        try:
            properties = _properties(chosen, at, key, left_out)
            if files and not batches and row_files.may_be_added(output, table, files, options):
                row_files.add(output, table, files, properties, options)
            else:
                _write(output, table, _Rows(output, batches, files, options), properties, delta)
                row_files.remove(output, files, options)
        except (CommitFailedError, FileExistsError) as error:
            if _NOT_SUPPORTED in str(error):
                raise _refused(output, error) from error
            continue  # another writer was faster, perhaps with the same rows
        except Exception as error:  # delta-rs raises plain Exceptions, too
            if table is None and _opened(output.uri, delta) is not None:
                continue  # another writer has made it
            raise _refused(output, error) from error
        return left_out
    raise OutputError(f"{_TRIES} commits to the output {output.uri!r} in a row were overtaken by others. The rows wait; run the task again.")


def _refused(output: Output, error: Exception) -> OutputError:
    return OutputError(
        f"Rows cannot be added to the output {output.uri!r}: {first_line(error)}. They wait in the queue's own table: repair the "
        "output's columns or constraints, or its place, then run the task again."
    )


def _opened(uri: str, options: dict[str, str] | None) -> DeltaTable | None:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return DeltaTable(uri, storage_options=options)
    except TableNotFoundError:
        return None
    except Exception as error:
        raise OutputError(
            f"The output {uri!r} cannot be opened: {first_line(error)}. Nothing is lost; see that the place can be reached and is a Delta table or "
            "empty, then run the task again."
        ) from error


def _properties(application: str, number: int, key: str, left_out: str) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    metadata = {_KEY: key, _LEFT_OUT: left_out} if left_out else {_KEY: key}
    return CommitProperties(custom_metadata=metadata, app_transactions=[Transaction(application, number)], max_commit_retries=0)


class _Rows:
    """Rows that are written to an output. Rows in files are read while they are written, so that they may be more than fit into memory.

    :ivar schema: the columns of all of them.
    """

    def __init__(self, output: Output, batches: Sequence[pa.RecordBatch], files: Sequence[FileOfRows], options: Mapping[str, str]) -> None:
        self._output, self._batches, self._files, self._options = output, batches, files, options
        self.number = sum(batch.num_rows for batch in batches) + sum(file.rows for file in files)
        self.schema = _unified([*(batch.schema for batch in batches), *map(all_nullable, row_files.schemas(output, files, options))])

    def fitted(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield them with these columns. Raises ArrowInvalid, and FileNotFoundError for a file that is gone."""
        yield from _as(self._batches, schema)
        for file in self._files:
            yield from _as(row_files.read(self._output, file, self._options), schema)

    def stream(self, schema: pa.Schema) -> pa.RecordBatchReader:
        """Return them with these columns; of those with the same keys the last one. Raises as ``fitted``, and ValueError as ``last_of_each``."""
        rows = self.fitted(schema)
        if self._output.keys:
            rows = _taken(rows, last_of_each(self.fitted(schema), schema, self._output.keys))
        return pa.RecordBatchReader.from_batches(schema, rows if self._files else list(rows))  # what does not fit is known before


def _write(output: Output, table: DeltaTable | None, rows: _Rows, properties: CommitProperties, options: dict[str, str] | None) -> None:
    from deltalake import write_deltalake

    target = None if table is None else row_files.columns_of(table)
    given = target if target is not None and not rows.number else rows.schema
    generated = () if table is None else rules_of(table, local=True).generated
    schema = _fitted(given, target, generated, output)
    evolves = output.evolve and target is not None and not {*schema.names} <= {*target.names}
    if table is None or not output.keys or not rows.number:
        write_deltalake(
            output.uri if table is None else table,
            rows.stream(schema),
            mode="append" if table is not None else "error",
            schema_mode="merge" if evolves else None,
            commit_properties=properties,
            storage_options=options if table is None else None,
        )
        return
    merging = table.merge(
        rows.stream(schema),
        " AND ".join(f"output.{quoted(key)} <=> rows.{quoted(key)}" for key in output.keys),  # null equals null
        source_alias="rows",
        target_alias="output",
        merge_schema=evolves,
        commit_properties=properties,
    )
    merging.when_matched_update_all().when_not_matched_insert_all().execute()


def _unified(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the columns of all batches, in which one may know types that another one does not."""
    fields: dict[str, pa.Field[Any]] = {}
    for field in (field for schema in schemas for field in schema):
        known = fields.setdefault(field.name, field)
        fields[field.name] = known.with_type(filled(known.type, field.type))
    return pa.schema(list(fields.values()))


def _fitted(given: pa.Schema, target: pa.Schema | None, generated: Sequence[str], output: Output) -> pa.Schema:
    """Return the columns as they are written: with the table's types, of new ones with those that are declared, and text where no value has been
    seen.

    :param generated: columns that are computed where rows do not have them.
    """
    fields, declared = [], {field.name: field for field in output.columns or ()}
    for field in given:
        if target is not None and field.name in target.names:
            fields.append(target.field(field.name))
        elif target is not None and not output.evolve:
            raise ValueError(f"it has no column {field.name!r}; it has {', '.join(target.names)}")
        else:
            fields.append(declared.get(field.name, field.with_type(without_unknown(field.type))))
    others = target or declared.values()
    fields += [field for field in others if field.name not in given.names and field.name not in generated]
    return pa.schema(fields)


def _as(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:

    for batch in batches:
        columns: list[pa.Array[Any]] = []
        for field in schema:
            at = batch.schema.get_field_index(field.name)
            columns.append(pa.nulls(batch.num_rows, field.type) if at < 0 else cast(batch.column(at), field.type))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def last_of_each(rows: Iterable[pa.RecordBatch], schema: pa.Schema, keys: Sequence[str]) -> NDArray[np.int64]:
    """Return the places of the last row of each key, as Delta's MERGE wants it; keys are equal as there.

    Raises ValueError for a key that is no column.
    """
    missing = next((key for key in keys if key not in schema.names), None)
    if missing is not None:
        raise ValueError(f"output_keys names {missing!r}, and the rows have the columns {', '.join(schema.names)}")
    of_rows = pa.Table.from_batches([batch.select(list(keys)) for batch in rows], pa.schema([schema.field(key) for key in keys]))
    names = [str(number) for number in range(len(keys))]
    numbered = pa.table([*map(_comparable, of_rows.columns), pa.array(np.arange(of_rows.num_rows))], names=[*names, "number"])
    last = numbered.group_by(names, use_threads=False).aggregate([("number", "max")]).column("number_max")
    return np.sort(last.to_numpy())


def _taken(batches: Iterable[pa.RecordBatch], places: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """Yield rows at places in order."""
    before = 0
    for batch in batches:
        first, end = np.searchsorted(places, [before, before + batch.num_rows])
        yield batch.take(places[first:end] - before)
        before += batch.num_rows


def _comparable(column: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any] | pa.Array[Any]:
    """Return values that Arrow groups as Delta's MERGE compares them: 0.0 and -0.0 are one, and so is each NaN."""
    if pa.types.is_nested(column.type):
        return pa.array(map(repr, column.to_pylist()), pa.string())
    if not pa.types.is_floating(column.type):
        return column
    nan, zero = (pa.array([value], column.type)[0] for value in (math.nan, 0.0))
    found: pa.ChunkedArray[Any] = pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))  # type: ignore[arg-type]  # of numbers
    return found


def _there(table: DeltaTable, key: str, uri: str) -> str | None:
    """Return what was left out of rows that are there, as the history of a table says; None: they are not there.

    Raises OutputError when the history does not reach back far enough to decide.
    """
    oldest = None
    for commit in table.history():
        if commit.get(_KEY) == key:
            return str(commit.get(_LEFT_OUT, ""))
        oldest = commit.get("version", oldest)
    if oldest:
        raise OutputError(
            f"Whether rows are in the output {uri!r} already is not known: its history begins with version {oldest}. They wait in the queue's own "
            f"table. Look for rows of the key {key!r} there; then remove or keep them by hand."
        )
    return None


def _force(root: Path, key: str) -> None:
    """Force the commit of a key, and what it stands on, to disk: the queue's own copy of its rows goes next, and delta-rs forces nothing."""
    reach("output.land.before_force")
    entries = sorted((root / "_delta_log").glob("*.json"), reverse=True)
    for entry in entries:
        actions = [json.loads(line) for line in entry.read_bytes().splitlines()]
        if any(action.get("commitInfo", {}).get(_KEY) == key for action in actions):
            added = [unquote(action["add"]["path"]) for action in actions if "add" in action]
            newest = [str(path.relative_to(root)) for path in entries if path.name <= entry.name][:_FORCED]
            disk.sync_files(str(root), [*added, *newest])
            disk.sync_ancestors(root)
            return
