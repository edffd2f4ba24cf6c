"""Outputs: tables where the rows land that handlers return; which rows fit into one, and such rows on their way there.

A row is checked where it is returned, so that one that does not fit is a failure of its message. From there it travels as a tuple of values in the
order of the output's columns, from the task on as Arrow (``_output`` in the queue's own table), until it is in the output.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from airflow_poison.outputs.table_rules import Conditions
from airflow_poison.outputs.values import (
    MISFITS,
    cells_of,
    check_names_and_depth,
    checked_by,
    delta_schema,
    delta_type,
    filled,
    fits_type,
    has_unknown,
    may_be_cast,
    nullable,
    same_name,
    type_of,
)
from airflow_poison.values.clock import text_of_days, text_of_micros
from airflow_poison.values.data_frames import columns_of_frame, has_objects, is_frame, is_missing, name_with_nul, read_once, table_of
from airflow_poison.values.ddl import column_names, ddl_type, parse_ddl
from airflow_poison.values.errors import OutputRowError, SettingError, TransformError
from airflow_poison.values.libraries import np, pa, pc
from airflow_poison.values.schema import LOOKUP_ID
from airflow_poison.values.texts import is_utf8, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from airflow_poison.outputs.table_rules import TableRules
    from airflow_poison.outputs.values import Checked

ONLY = "output"
"""The name of an output that is declared alone."""
OF_NONE = "*"
"""Ends the name of an output, in what ``of_none`` returns."""
_LONGEST = 100
PROVENANCE = ("_queue", "_lookup_id", "_pass", "_received_at")
"""Columns that say where a row comes from: text, bigint, text, timestamp."""
CORRECTIONS = "_corrections"
_MILLIS_OF_DAY = 86_400_000
"""The column that says which cells of a row are null because they did not fit (``on_bad_cell="null"``); null: none is."""
_TOGETHER = b"together"
"""Begins the rows of several messages as they travel together."""
_MOST_TOGETHER = 64 << 20
"""So many bytes travel together at most; of more, each message's rows travel alone."""
_NAME, _OWNERS = b"poison.output", b"poison.lookup_ids"
_TELLS_MORE = object()
"""In place of a value that shows an unknown part of its column's type."""


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """A table where returned rows land, or a function that they are given to.

    :param name: as handlers call it where there are several.
    :param uri: of the Delta table; empty: the rows go to the pass's ``deliver`` function.
    :param schema: of the rows, as DDL text or as an Arrow schema; None: as in the first rows.
    :param keys: rows replace rows of the table with the same values here; none: they are added.
    :param evolve: columns that the table does not have are added to it.
    :param provenance: rows say where they come from (``PROVENANCE``).
    :param nulls: a cell that does not fit its column is null, and ``CORRECTIONS`` says so, unless the column is a key or must have a value.
    :param alone: it is the only one, and what is returned are its rows.
    :param delta: it holds what a Delta table can hold.
    :param rules: what its table wants of rows beside their types; None: there is no table, or it is not known yet.
    """

    name: str = ONLY
    uri: str = ""
    schema: pa.Schema | str | None = None
    keys: tuple[str, ...] = ()
    evolve: bool = False
    provenance: bool = False
    nulls: bool = False
    alone: bool = True
    delta: bool = False
    rules: TableRules | None = None

    @property
    def named(self) -> str:
        """How messages name it."""
        return "the output" if self.alone else f"the output {self.name!r}"

    @property
    def columns(self) -> pa.Schema | None:
        """The schema as Arrow; with ``CORRECTIONS`` where cells are made null."""
        found = parse_ddl(self.schema, "output_schema") if isinstance(self.schema, str) else self.schema
        return found.append(corrections_field()) if found is not None and self.nulls and CORRECTIONS not in found.names else found

    def may_null(self, column: pa.Field[Any] | Column) -> bool:
        """Whether a cell of a column is made null where it does not fit."""
        return self.nulls and column.nullable and column.name not in self.keys

    def check_columns(self, given: Sequence[pa.Field[Any]], by: str) -> None:
        """Raise TransformError for columns that do not fit this output's, for one that is missing, and for one that no Delta table can hold.

        :param by: who returned them, for the error.
        """
        if self.delta:
            try:
                delta_schema(pa.schema(given))
            except ValueError as error:
                raise TransformError(f"{by} returned what {self.named} cannot hold: {error} Cast it, or give it another name.") from None
        wanted, there = self.columns, {field.name for field in given}
        if lacking := [key for key in self.keys if key not in there and (wanted is None or key not in wanted.names)]:
            raise TransformError(f"{by} returned no column {lacking[0]!r}, which output_keys names; it returned {', '.join(sorted(there))}.")
        if self.nulls and CORRECTIONS in there:
            raise TransformError(f"{by} returned a column {CORRECTIONS!r}, which on_bad_cell='null' fills. Give it another name.")
        if wanted is None:
            return
        if lacking := [field.name for field in wanted if not field.nullable and field.name not in there]:
            raise TransformError(f"{by} returned no column {lacking[0]!r}, which must have a value in each row of the output. Add it.")
        for field in given:
            if field.name not in wanted.names:
                self._check_new(field.name, wanted, by)
            elif not fits_type(field.type, nullable(kind := wanted.field(field.name).type)) and not (self.nulls and may_be_cast(field.type, kind)):
                raise TransformError(
                    f"{by} returned the column {field.name!r} as {field.type}; the output has {kind}. Cast it in the transformation: "
                    "whether a value fits is then its message's affair."
                )

    def _check_new(self, name: str, wanted: pa.Schema, by: str) -> None:
        if (twice := same_name([*wanted.names, name])) is not None:
            raise TransformError(
                f"{by} returned a column {twice[1]!r}; the output has {twice[0]!r}, and Delta has no columns that differ by case alone. Rename it."
            )
        if not self.evolve:
            raise TransformError(f"{by} returned a column {name!r}; the output has {', '.join(wanted.names)}. Drop it, or declare evolve=True.")


def corrections_field() -> pa.Field[Any]:
    """Return the column ``CORRECTIONS``: an array of cells, each with the column, the value as text, and why it is null."""
    return pa.field(CORRECTIONS, pa.list_(pa.struct([(name, pa.string()) for name in ("column", "value", "why")])))


def outputs_of(
    output: object = None,
    *,
    schema: object = None,
    keys: object = None,
    evolve: bool = False,
    provenance: bool = False,
    deliver: bool = False,
    on_bad_cell: object = None,
) -> tuple[Output, ...]:
    """Return the outputs that a user declares; none when nothing is. Raises SettingError.

    :param output: path or URI of a Delta table; or a mapping of names to such.
    :param schema: DDL text (``"id bigint, name string"``) or an Arrow schema; for several outputs a mapping.
    :param keys: column names; for several outputs a mapping.
    :param deliver: the rows go to a function instead.
    :param on_bad_cell: ``null``, or None: a row with a cell that does not fit fails.
    """
    if output is None and not deliver:
        for name, value in (("output_schema", schema), ("output_keys", keys), ("on_bad_cell", on_bad_cell)):
            if value:
                raise SettingError(name, value, "a setting of an output; declare output=... too")
        return ()
    if output is not None and deliver:
        raise SettingError("output", output, "an output or a deliver function, not both")
    nulls, alone = _nulls(on_bad_cell), not isinstance(output, Mapping)
    uris = {ONLY: "" if deliver else _uri(output)} if not isinstance(output, Mapping) else {_name(name): _uri(uri) for name, uri in output.items()}
    if not uris:
        raise SettingError("output", output, "a path or URI of a Delta table, or a mapping of names to such")
    twice = {uri for uri in uris.values() if list(uris.values()).count(uri) > 1}
    if twice:
        raise SettingError("output", min(twice), "every table once; two outputs are this one")
    schemas = _by_name("output_schema", schema, uris, alone=alone)
    of_keys = _by_name("output_keys", keys, uris, alone=alone)
    found = []
    for name, uri in uris.items():
        given, its_keys = schemas.get(name), _keys(of_keys.get(name))
        if uri and given is not None and not isinstance(given, str):
            given = _in_delta(given)
        there = _column_names(given)
        missing = [key for key in its_keys if given is not None and key not in there and not evolve]
        if missing:
            raise SettingError("output_keys", missing[0], f"a column of the schema: {', '.join(there)}")
        found.append(Output(name, uri, cast("pa.Schema | str | None", given), its_keys, evolve, provenance, nulls, alone, bool(uri)))
    return tuple(found)


def _nulls(on_bad_cell: object) -> bool:
    if on_bad_cell not in {None, "null"}:
        raise SettingError("on_bad_cell", on_bad_cell, "'null', or None: a row with a cell that does not fit its column fails")
    return on_bad_cell is not None


def _uri(given: object) -> str:
    if isinstance(given, (str, os.PathLike)):
        uri = os.fspath(given)
        if uri == "None":
            raise SettingError("output", uri, "a path or URI of a Delta table; Airflow makes 'None' of a template whose value is none, give it one")
        if isinstance(uri, str) and uri.strip():
            return uri.removeprefix("file://").rstrip("/") or "/"
    raise SettingError("output", given, "a path or URI of a Delta table, or a mapping of names to such")


def _name(given: object) -> str:
    if isinstance(given, str) and given.isidentifier():
        return given
    raise SettingError("output", given, "names of outputs like 'landed': letters, digits and underscores")


def _by_name(setting: str, given: object, names: Mapping[str, str], *, alone: bool) -> Mapping[str, object]:
    """Return a setting by the names of the outputs."""
    if given is None or (not given and not isinstance(given, str)):
        return {}
    if alone:
        return {ONLY: given}
    if not isinstance(given, Mapping):
        raise SettingError(setting, given, f"a mapping of the outputs' names: {', '.join(names)}")
    other = next((name for name in given if name not in names), None)
    if other is not None:
        raise SettingError(setting, other, f"a name of an output: {', '.join(names)}")
    return given


def _column_names(schema: object) -> list[str]:
    """Return the names of a schema, which may be none. Raises SettingError for what is no schema."""
    if schema is None:
        return []
    if isinstance(schema, str):
        return column_names(schema, "output_schema")

    if isinstance(schema, pa.Schema):
        return schema.names
    raise SettingError("output_schema", schema, "DDL like 'id bigint, name string', or an Arrow schema")


def _in_delta(given: object) -> pa.Schema:
    """Return an Arrow schema as a Delta table keeps it. Raises SettingError."""
    _column_names(given)
    try:
        return delta_schema(cast("pa.Schema", given))
    except ValueError as error:
        raise SettingError("output_schema", str(given).replace("\n", ", "), f"columns of types that a Delta table has: {error}") from None


def _keys(given: object) -> tuple[str, ...]:
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Iterable) or not all(isinstance(key, str) and key for key in given):
        raise SettingError("output_keys", given, "a list of column names, like ['id']")
    return tuple(given)


# Rows that fit ---------------------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of an output.

    :param fits: returns a value as it is kept; raises one of ``MISFITS`` for one that does not fit. None: its type is not known yet.
    :param open: a part of its type is not known yet.
    :param names: its values name folders.
    """

    name: str
    kind: pa.DataType
    nullable: bool
    fits: Checked | None
    open: bool
    names: bool


class RowSchema:
    """What fits into one output, as far as this process knows.

    :param learn: given a column's name and type when a row has one that is not known, or whose type was not; returns the columns from now on. None:
        all are known.
    """

    def __init__(self, output: Output, learn: Callable[[Mapping[str, pa.DataType]], pa.Schema] | None) -> None:
        self._output, self._learn, self._rules = output, learn, output.rules
        self._conditions = Conditions(self._rules, evolve=output.evolve) if self._rules is not None and self._rules.conditions else None
        self._columns: list[Column] = []
        self._places: dict[str, int] = {}
        self._simple: list[tuple[str, Checked, bool]] = []
        self._lacks: str | None = None
        if output.columns is not None:
            self._know(output.columns)

    def _know(self, schema: pa.Schema) -> None:

        names = () if self._rules is None else self._rules.partitions
        self._columns = [
            Column(
                field.name,
                field.type,
                field.nullable,
                None if pa.types.is_null(field.type) else checked_by(field.type),
                has_unknown(field.type),
                field.name in names,
            )
            for field in schema
        ]
        self._places = {column.name: place for place, column in enumerate(self._columns)}
        self._lacks = next((key for key in self._output.keys if key not in self._places), None)
        plain = [(column.name, column.fits, column.nullable) for column in self._columns if column.fits and not (column.open or column.names)]
        is_simple = self._conditions is None and not self._output.nulls and self._lacks is None and len(plain) == len(self._columns)
        self._simple = plain if is_simple else []

    def simple_row(self, cells: Mapping[Any, Any]) -> tuple[Any, ...] | None:
        """Return what ``row`` does, for a row with a value that fits, or None, in each column, and no more; None: ask ``rows``."""
        if not cells or len(cells) != len(self._simple):
            return None
        try:
            return tuple([None if (value := cells[name]) is None and nullable else fits(value) for name, fits, nullable in self._simple])
        except (KeyError, *MISFITS):
            return None

    def has(self, column: str) -> bool:
        """Return whether the output has a column."""
        return column in self._places

    def row(self, given: object) -> tuple[Any, ...]:
        """Return a row's values in the order of the columns. Raises OutputRowError."""
        cells = given if type(given) is dict else cells_of(given)
        if cells is None:
            raise OutputRowError(
                f"The handler returned {_shown(given)} for {self._output.named}; expected rows: a mapping, a Row, a dataclass or a named tuple each."
            )
        if not cells and not self._columns:
            raise OutputRowError(f"A row for {self._output.named} has no columns (lookup_id is none of them); return rows with some, or nothing.")
        if self._output.nulls and CORRECTIONS in cells:
            raise OutputRowError(
                f"A row for {self._output.named} has a column {CORRECTIONS!r}, which on_bad_cell='null' fills. Give it another name."
            )
        found, values, corrections = 0, [], list[dict[str, str]]()
        for column in self._columns:
            value = cells.get(column.name)
            if value is not None and (value := self._kept(column, value, cells, corrections)) is _TELLS_MORE:
                return self._learned(cells)
            found += column.name in cells
            if value is None and not column.nullable:
                raise OutputRowError(f"Column {column.name!r} of {self._output.named} must have a value; the row has none.")
            values.append(value)
        if found != len(cells):
            return self._learned(cells)
        if self._lacks is not None:
            raise OutputRowError(f"A row for {self._output.named} has no column {self._lacks!r}, which output_keys names; it has {', '.join(cells)}.")
        if corrections:
            values[self._places[CORRECTIONS]] = corrections
        return tuple(values)

    def _kept(self, column: Column, value: Any, cells: Mapping[Any, Any], corrections: list[dict[str, str]]) -> Any:
        """Return a value as it is kept, None for one that is missing; or the mark of a part of its type. Raises OutputRowError.

        :param corrections: gets one where the value does not fit, and None is kept.
        """
        if column.fits is None:
            return None if is_missing(value) else _TELLS_MORE
        try:
            kept = column.fits(value)
        except MISFITS as error:
            if is_missing(value):
                return None
            if column.open and self._learn is not None and filled(column.kind, self._type_of(column.name, cells)) != column.kind:
                return _TELLS_MORE
            if self._output.may_null(column):
                text = str.__str__(value) if isinstance(value, str) else _shown(value).rpartition(" (")[0]
                text = text.encode("utf-8", "backslashreplace").decode()
                corrections.append({"column": column.name, "value": text, "why": does_not_fit(column.kind) + _because(error)})
                return None
            raise self._misfit(column, value, error) from None
        if column.names and self._rules is not None and (why := self._rules.unnameable(column.name, kept)) is not None:
            raise self._misfit(column, value, ValueError(why))
        return kept

    def rows(self, given: Iterable[object]) -> list[tuple[Any, ...]]:
        """Return the values of rows, as ``row`` does, that break no condition of the output's table. Raises OutputRowError."""
        found = [self.row(each) for each in given]
        if (broken := self._broken_by(found)) is not None:
            if len(found) > 1:
                broken = next(filter(None, (self._broken_by([row]) for row in found)), broken)
            raise OutputRowError(f"A row does not fit {self._output.named}: {broken}.")
        return found

    def batch_of(self, table: pa.Table) -> pa.RecordBatch | None:
        """Return a table with the output's columns, in their order, where it fits as it is. None: each row has to be looked at."""
        there = table.schema.names
        if not self._columns or self._lacks is not None or len({*there}) < len(there) or not self._places.keys() >= {*there}:
            return None
        cells: list[pa.Array[Any]] = []
        for column in self._columns:
            given: Any = table.column(column.name) if column.name in there else pa.nulls(table.num_rows, cast("Any", column.kind))
            if column.names or not _is_plain(column.kind) or not _is_alike(given.type, column.kind) or (given.null_count and not column.nullable):
                return None
            try:
                given = given.cast(column.kind)
                given.validate(full=True)
                if pa.types.is_temporal(column.kind):
                    pc.min_max(given).as_py()
            except (ValueError, OverflowError):  # text that is none, an instant that Python does not have
                return None
            cells.append(given.combine_chunks() if isinstance(given, pa.ChunkedArray) else given)
        batch = pa.RecordBatch.from_arrays(cells, schema=pa.schema([(column.name, column.kind) for column in self._columns]))
        return batch if self._conditions is None or not batch.num_rows or self._conditions.broken_by(batch) is None else None

    def together(self, name: str, rows: Sequence[tuple[Any, ...]], owners: Sequence[int]) -> bytes | None:
        """Return rows that fit as ``rows_together`` does; None where a part of a column's type is not known yet.

        :param owners: the lookup id of each row's message.
        """
        if any(column.fits is None or column.open for column in self._columns):
            return None
        return _together(name, to_batch(rows, pa.schema([(column.name, column.kind) for column in self._columns])), owners)

    def _broken_by(self, rows: Sequence[tuple[Any, ...]]) -> str | None:

        if self._conditions is None or not rows:
            return None
        return self._conditions.broken_by(to_batch(rows, pa.schema([(column.name, column.kind) for column in self._columns])))

    def _misfit(self, column: Column, value: object, error: Exception) -> OutputRowError:
        return OutputRowError(
            f"Column {column.name!r} of {self._output.named} is {ddl_type(column.kind)}; {_shown(value)} does not fit{_because(error)}."
        )

    def _learned(self, cells: Mapping[Any, Any]) -> tuple[Any, ...]:
        """Take in columns that were not known. Raises OutputRowError."""
        unknown = [name for name in cells if name not in self._places]
        if wrong := [name for name in unknown if not isinstance(name, str) or not name or "\0" in name or not is_utf8(name)]:
            raise OutputRowError(
                f"A row for {self._output.named} has a column {wrong[0]!r}; expected text as its name, without NUL, that UTF-8 can hold."
            )
        named = self._output.named
        reserved = PROVENANCE if self._output.provenance else ()
        if taken := [name for name in unknown if name in reserved or (self._output.delta and name.lower() in reserved)]:
            raise OutputRowError(f"A row for {named} has a column {taken[0]!r}, which provenance=True fills; give it another name.")
        if unknown and (self._learn is None or (self._columns and not self._output.evolve)):
            like = nearest(str(unknown[0]), list(self._places))
            meant = f" Did you mean {like!r}?" if like else ""
            raise OutputRowError(
                f"{named[0].upper()}{named[1:]} has no column {unknown[0]!r}; it has {', '.join(self._places)}.{meant} "
                "Return other rows, or declare evolve=True to add columns."
            )
        if unknown and self._output.delta and (twice := same_name([*self._places, *unknown])) is not None:
            raise OutputRowError(
                f"A row for {named} has a column {twice[1]!r} beside {twice[0]!r}; a Delta table has no columns that differ by case alone. "
                "Give one of them another name."
            )
        news = {name: self._type_of(name, cells) for name in cells if name in unknown or self._is_unknown(name, cells[name])}
        if self._output.nulls and CORRECTIONS not in self._places:
            news[CORRECTIONS] = corrections_field().type
        assert self._learn is not None
        self._know(self._learn(news))
        return self.row(cells)

    def _is_unknown(self, name: str, value: object) -> bool:
        column = self._columns[self._places[name]]
        return value is not None and (column.fits is None or column.open)

    def _type_of(self, name: str, cells: Mapping[Any, Any]) -> pa.DataType:
        """Return the type of a column by a frame's own, else by its first value; null for None. Raises OutputRowError."""
        kinds, value = getattr(cells, "kinds", {}), cells[name]
        has = f"Column {name!r} of {self._output.named} cannot " + (f"be {kinds[name]}" if name in kinds else f"have the value {_shown(value)}")
        try:
            kind = kinds[name] if name in kinds else type_of(value)
            check_names_and_depth(kind)
        except RecursionError:
            raise OutputRowError(f"{has}: it is nested too deeply, or holds itself. Return text.") from None
        except MISFITS as error:  # Arrow's errors are such
            raise OutputRowError(f"{has}{_because(error)}. Declare output_schema.") from None
        try:
            return delta_type(kind) if self._output.delta else kind
        except ValueError as error:
            raise OutputRowError(f"{has}{_because(error)}") from None


def does_not_fit(kind: pa.DataType) -> str:
    """Return why a cell was made null."""
    return f"does not fit {ddl_type(kind)}"


def _shown(value: object) -> str:
    try:
        text = _of_arrow(value) if type(value).__module__ == "pyarrow.lib" else repr(value)
    except Exception:  # noqa: BLE001  (a user's class may do anything)
        text = "something"
    return f"{text if len(text) <= _LONGEST else text[:_LONGEST] + '…'} ({type(value).__name__})"


def _of_arrow(value: Any) -> str:
    """Return the text of a value that Python does not have: bytes of a text that is none, a date out of its years. Raises Arrow's errors."""
    of = pa.types
    if of.is_string(value.type) or of.is_large_string(value.type) or of.is_string_view(value.type):
        return repr(value.cast(pa.binary()).as_py())
    if of.is_date32(value.type):
        return text_of_days(value.cast(pa.int32()).as_py())
    if (step := {"date64[ms]": 1_000, "timestamp[us]": 1, "timestamp[ms]": 1_000, "timestamp[s]": 1_000_000}.get(str(value.type))) is not None:
        return text_of_micros(value.cast(pa.int64()).as_py() * step)
    return str(value.cast(pa.string()).as_py())


def _because(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return f": {text}" if text else ""


def _is_plain(kind: pa.DataType) -> bool:
    """Whether values of a type are kept as Arrow gives them."""
    of = pa.types
    tests = (of.is_boolean, of.is_integer, of.is_floating, of.is_string, of.is_binary, of.is_date32, of.is_timestamp, of.is_decimal128)
    return any(is_it(kind) for is_it in tests)


def _is_alike(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a column of a table has an output's type, or its texts or bytes in another layout, as Polars has them."""
    of = pa.types
    other = of.is_string(kind) and (of.is_large_string(given) or of.is_string_view(given))
    return given == kind or other or (of.is_binary(kind) and (of.is_large_binary(given) or of.is_binary_view(given)))


# What a handler returned -----------------------------------------------------------------------------------------------


def rows_of(returned: object, row_schemas: Mapping[str, RowSchema], *, alone: bool) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Check what a handler returned; return the name of each output that has rows, and those. Raises OutputRowError.

    Rows are one mapping, Row, dataclass or named tuple, or any iterable of such; where there are several outputs, a mapping of their names to rows.
    """
    if returned is None:
        return []
    if alone:
        by_name: Mapping[Any, Any] = {ONLY: returned}
    elif isinstance(returned, Mapping):
        by_name = returned
    else:
        raise OutputRowError(f"The handler returned {_shown(returned)}; expected a mapping of outputs to rows: {', '.join(map(repr, row_schemas))}.")
    kept = []
    for name, row_schema in row_schemas.items():
        rows = by_name.get(name)
        if rows is not None and (fitted := row_schema.rows(_each_row(rows))):
            kept.append((name, fitted))
    other = next((name for name in by_name if name not in row_schemas), None)
    if other is not None:
        raise OutputRowError(f"The handler returned rows for {other!r}, which is no output; there are {', '.join(map(repr, row_schemas))}.")
    return kept


def as_bytes(kept: list[tuple[str, list[tuple[Any, ...]]]]) -> bytes:
    """Return what ``rows_of`` returned as it travels, empty for no rows. ``rows_kept`` has it back."""
    return pickle.dumps(kept, pickle.HIGHEST_PROTOCOL) if kept else b""


def one_row(row: tuple[Any, ...]) -> bytes:
    """Return a row of the only output as it travels."""
    return pickle.dumps(row, pickle.HIGHEST_PROTOCOL)


def rows_together(returned: object, lookup_ids: Sequence[int], row_schemas: Mapping[str, RowSchema], *, alone: bool) -> bytes | None:
    """Return the rows of a table for one output as they travel, all together; each says its message. ``table_kept`` has them back.

    None: it is another thing, a row is of no message in the frame, or the types are not the output's, so that each row has to be looked at.
    """
    if not alone or not hasattr(returned, "__arrow_c_stream__"):
        return None
    if has_objects(returned):
        return None  # each value has its own type
    try:
        table, ((name, row_schema),) = table_of(returned), row_schemas.items()
    except MISFITS:  # a type of pandas that Arrow does not have, or a name that is there twice
        return None
    if name_with_nul(table.schema) is not None:
        return None
    places = _places_of(table, lookup_ids) if table.nbytes <= _MOST_TOGETHER else None
    batch = None if places is None else row_schema.batch_of(table if row_schema.has(LOOKUP_ID) else table.drop_columns([LOOKUP_ID]))
    if places is None or batch is None:
        return None
    if (np.diff(places) < 0).any():  # as if each message had returned its own
        order = np.argsort(places, kind="stable")
        batch, places = batch.take(order), places[order]
    return _together(name, batch, np.asarray(lookup_ids)[places])


def _together(name: str, batch: pa.RecordBatch, owners: Sequence[int] | NDArray[np.int64]) -> bytes:
    return _TOGETHER + stream_of(batch, owners, {_NAME: name.encode()}) if batch.num_rows else b""


def _places_of(table: pa.Table, lookup_ids: Sequence[int]) -> NDArray[np.intp] | None:
    """Return the place of each row's message; None: a row is of none of these."""
    if table.schema.names.count(LOOKUP_ID) != 1 or not pa.types.is_int64(table.column(LOOKUP_ID).type) or table.column(LOOKUP_ID).null_count:
        return None
    owners, ids = table.column(LOOKUP_ID).to_numpy(), np.asarray(lookup_ids)
    sorter = np.argsort(ids)
    places: NDArray[np.intp] = sorter[np.minimum(np.searchsorted(ids, owners, sorter=sorter), len(ids) - 1)]
    return places if (ids[places] == owners).all() else None


def is_together(returned: bytes) -> bool:
    """Whether ``rows_together`` made it."""
    return returned.startswith(_TOGETHER)


def table_kept(returned: bytes) -> tuple[str, NDArray[np.int64], pa.RecordBatch]:
    """Return what ``rows_together`` made: the name of the output, the lookup id of each row's message, and the rows."""
    batch, owners, more = rows_of_stream(returned[len(_TOGETHER) :])
    assert owners is not None, "it was written with them"
    return more[_NAME].decode(), owners, batch


def stream_of(batch: pa.RecordBatch, owners: Sequence[int] | NDArray[np.int64], more: Mapping[bytes, bytes] | None = None) -> bytes:
    """Return rows as an Arrow stream whose metadata says which message each is of.

    :param more: metadata besides.
    """
    sink = pa.BufferOutputStream()
    batch = batch.replace_schema_metadata({_OWNERS: np.asarray(owners, "<i8").tobytes(), **(more or {})})
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def rows_of_stream(content: bytes) -> tuple[pa.RecordBatch, NDArray[np.int64] | None, Mapping[bytes, bytes]]:
    """Return what ``stream_of`` wrote: the rows, their messages (None: the stream does not say them), and its metadata."""
    with pa.ipc.open_stream(content) as stream:
        batch, metadata = stream.read_next_batch(), stream.schema.metadata or {}
    owners = metadata.get(_OWNERS)
    return batch.replace_schema_metadata(), None if owners is None else np.frombuffer(owners, "<i8"), metadata


def divided(returned: object, lookup_ids: Sequence[int], row_schemas: Mapping[str, RowSchema], *, alone: bool) -> tuple[dict[int, Any], Any]:
    """Divide what a handler of batches returned: the rows that name their message in ``lookup_id``, by its place in the frame, and the others.

    The column stays only where an output has it. Raises OutputRowError for a row of a message that is not in the frame.
    """
    if returned is None or not (alone or isinstance(returned, Mapping)):
        return {}, returned
    places = {number: place for place, number in enumerate(lookup_ids)}
    own: dict[int, dict[Any, list[object]]] = {}
    others: dict[Any, list[object]] = {}
    by_name: Mapping[Any, Any] = {ONLY: returned} if alone else cast("Mapping[Any, Any]", returned)
    for name, rows in by_name.items():
        kept = name in row_schemas and row_schemas[name].has(LOOKUP_ID)
        for row in () if rows is None else _each_row(rows):
            cells = cells_of(row)
            number = None if cells is None else cells.get(LOOKUP_ID)
            if number is not None and number not in places:
                raise OutputRowError(f"A row for {name!r} has lookup_id={number!r}, a message that was not handed over with this frame.")
            given = row if cells is None or kept else _without_lookup_id(cells)
            (others if number is None else own.setdefault(places[number], {})).setdefault(name, []).append(given)
    return {place: named[ONLY] if alone else named for place, named in own.items()}, (others.get(ONLY) if alone else others)


class _FrameRow(dict[str, Any]):
    """A row of a frame.

    :ivar kinds: the types of the frame's columns, of those that have one.
    """

    kinds: Mapping[str, pa.DataType]


def _without_lookup_id(cells: Mapping[Any, Any]) -> Mapping[Any, Any]:
    rest = {column: value for column, value in cells.items() if column != LOOKUP_ID}
    return _frame_row(rest, cells.kinds) if isinstance(cells, _FrameRow) else rest


def _frame_row(cells: Mapping[str, Any], kinds: Mapping[str, pa.DataType]) -> _FrameRow:
    row = _FrameRow(cells)
    row.kinds = kinds
    return row


def _each_row(rows: Any) -> Iterable[object]:
    if type(rows) is dict or cells_of(rows) is not None:
        return (rows,)
    if is_frame(rows) or hasattr(rows, "__arrow_c_array__"):
        try:
            frame: Any = read_once(rows if is_frame(rows) else pa.record_batch(rows))
            columns = columns_of_frame(frame)
        except ValueError as error:
            raise OutputRowError(f"The handler returned rows that cannot be read: {error}.") from error
        if not columns:
            return [{}] * len(frame)
        return _frame_rows([(name, *((None, found) if isinstance(found, list) else (found.type, _values(found)))) for name, found in columns])
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        return (rows,)
    return rows


def _frame_rows(columns: Sequence[tuple[str, pa.DataType | None, Sequence[Any]]]) -> list[_FrameRow]:
    """Return the rows of a frame by its columns: names, types if they have one, values. Raises OutputRowError."""
    names = [name for name, _, _ in columns]
    if twice := [name for name in names if names.count(name) > 1]:
        raise OutputRowError(f"The frame has several columns {twice[0]!r}; give them names of their own.")
    kinds = {name: kind for name, kind, _ in columns if kind is not None}
    return [_frame_row(dict(zip(names, cells, strict=True)), kinds) for cells in zip(*(values for _, _, values in columns), strict=True)]


def _values(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[Any]:
    """Return values as Python has them; what it does not have is there as what fits no column."""
    if pa.types.is_date64(column.type):
        return [_value(each) for each in column]
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):
        return [_value(each) for each in column]


def _value(scalar: pa.Scalar[Any]) -> Any:

    if isinstance(scalar, pa.Date64Scalar) and scalar.is_valid and scalar.cast(pa.int64()).as_py() % _MILLIS_OF_DAY:
        return scalar  # Python would leave its part of a day out
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return scalar


def is_rows(returned: object) -> bool:
    """Whether something that a handler returned looks like rows."""
    if isinstance(returned, (list, tuple)) and returned and not hasattr(returned, "_asdict"):
        return cells_of(returned[0]) is not None
    return cells_of(returned) is not None or hasattr(returned, "__arrow_c_stream__")


def rows_kept(returned: bytes) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Return what ``as_bytes`` or ``one_row`` made: the name of each output that has rows, and those."""
    if not returned:
        return []
    found: list[tuple[str, list[tuple[Any, ...]]]] | tuple[Any, ...] = pickle.loads(returned)  # noqa: S301  (our own bytes, of plain values)
    return [(ONLY, [found])] if isinstance(found, tuple) else found


def of_none(returned: bytes) -> bytes:
    """Return what ``as_bytes`` made, marked as rows of many messages that do not say which one they are of."""
    return as_bytes([(name + OF_NONE, rows) for name, rows in rows_kept(returned)])


def joined(returned: bytes, more: bytes) -> bytes:
    """Return what ``as_bytes`` made twice, as one."""
    if not (returned and more):
        return returned or more
    return as_bytes(rows_kept(returned) + rows_kept(more))


def to_batch(rows: Sequence[tuple[Any, ...]], columns: pa.Schema) -> pa.RecordBatch:
    """Return rows as Arrow; a row that was returned before a column was known has no value there."""
    width = len(columns)
    full = [row if len(row) == width else row + (None,) * (width - len(row)) for row in rows]
    cells = list(zip(*full, strict=True)) or [()] * width
    return pa.RecordBatch.from_arrays([pa.array(column, field.type) for column, field in zip(cells, columns, strict=True)], schema=columns)
