"""What a Delta table wants of its rows beside their types: constraints, invariants, values that can name folders; and the trial of rows.

A trial writes rows to an empty table with the output's protocol, columns and constraints. What delta-rs refuses there it would refuse in the output.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_poison.outputs.values import cast
from airflow_poison.values.ddl import quoted
from airflow_poison.values.libraries import pa
from airflow_poison.values.texts import first_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalake import DeltaTable


_OF_THE_SYSTEM = re.compile(r"os error (\d+)")
"""How delta-rs reports an error of the operating system: in its text only."""
_OF_THE_DISK = frozenset(
    {errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EPERM, errno.EROFS}
)
"""Errors of the machine, whatever the row is; a name that is too long, for example, is the fault of the row."""
_FEW = 4
"""Rows whose conditions are asked of the engine, in a fraction of a millisecond; to write more of them takes less time for each."""
_CONSTRAINT, _INVARIANT, _GENERATED = "delta.constraints.", "delta.invariants", "delta.generationExpression"
TYPE_OF_TEXT, _LIMITED = "__CHAR_VARCHAR_TYPE_STRING", re.compile(r"(?:var)?char\((\d+)\)")
_CHECKS, _LISTS_READS, _LISTS_WRITES = 3, 3, 7
"""Versions of the protocol from which on constraints are checked, and features are listed."""
_WIDEST = 13
"""Bytes that a character can have in the name of a folder, and one more for the sign between column and value."""
_BELOW_0 = "the column is one of partitions, and delta-rs writes no decimal below 0 with a fraction into one"
_NAME = 255
"""Bytes of a name in a file system."""


@dataclass(frozen=True, slots=True)
class TableRules:
    """What a Delta table wants of its rows beside their types.

    :param log: the first entry of the log of a table that is its like: protocol and columns.
    :param conditions: names and SQL expressions that must be true for each row: CHECK constraints and column invariants.
    :param generated: columns that are computed from others.
    :param partitions: columns whose values name folders.
    :param longest: bytes that such a name may have; 0: there is no limit.
    """

    log: str = ""
    conditions: tuple[tuple[str, str], ...] = ()
    generated: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    longest: int = 0

    def for_spark(self) -> dict[str, str]:
        """Return why a row does not fit, and the expression of Spark that is true of each row that does."""
        found = {f"it breaks the constraint {name!r}: {text}": text for name, text in self.conditions}
        for name in self.partitions:
            column = quoted(name)
            size = f"octet_length(url_encode(replace({column}, ' ', '/')))"
            short = f" AND {size} <= {self.longest - len(_folder(name, ''))}" if self.longest else ""
            why = f"the column {name!r} is one of partitions, where an empty text would be null and each text is UTF-8"
            why += f", and the name of a folder has at most {self.longest} bytes" if short else ""
            text = f"CAST({column} AS STRING)"
            found[why] = f"{column} IS NULL OR typeof({column}) <> 'string' OR ({text} <> '' AND is_valid_utf8({text}){short})"
            fraction = f"{text} RLIKE '^-.*([.][0-9]*[1-9]|E-)'"
            found[f"the column {name!r}: {_BELOW_0}"] = f"{column} IS NULL OR typeof({column}) NOT LIKE 'decimal%' OR NOT {fraction}"
            if self.longest:
                digits = max(self.longest - len(_folder(name, "")) - 20, 1)  # a double has 17 of them, and Delta writes none with an exponent
                number = f"try_cast({text} AS double)"  # this is planned for columns of any type
                near = f"abs({number}) BETWEEN 1e-{digits} AND 1e{digits} OR {number} IN (0, double('inf'), double('-inf'), double('nan'))"
                long = f"the column {name!r} is one of partitions, and the name of a folder has at most {self.longest} bytes"
                found[long] = f"{column} IS NULL OR typeof({column}) NOT IN ('double', 'float') OR {near}"
        return found

    def unnameable(self, column: str, value: Any) -> str | None:
        """Return why a value cannot be in a partition column; None: it can."""
        if value == "" and isinstance(value, str):
            return "the column is one of partitions, where Delta keeps an empty text as null"
        if isinstance(value, Decimal) and value < 0 and value != value.to_integral_value():
            return _BELOW_0
        text = format(Decimal(repr(value)), "f") if isinstance(value, float) and math.isfinite(value) else str(value)
        if self.longest and (len(text) + len(column)) * _WIDEST > self.longest and len(_folder(column, text)) > self.longest:
            return f"the column is one of partitions, and the name of a folder has at most {self.longest} bytes"
        return None


def _folder(column: str, text: str) -> str:
    return f"{quote(column, safe='')}={quote(text, safe='').replace('~', '%7E')}"


def rules_of(table: DeltaTable, *, local: bool) -> TableRules:
    """Return what a table wants of its rows.

    :param local: it is in a file system.
    """
    protocol, metadata = table.protocol(), table.metadata()
    schema = json.loads(table.schema().to_json())
    versions: dict[str, object] = {"minReaderVersion": protocol.min_reader_version, "minWriterVersion": protocol.min_writer_version}
    if protocol.min_reader_version >= _LISTS_READS:
        versions["readerFeatures"] = protocol.reader_features or []
    if protocol.min_writer_version >= _LISTS_WRITES:
        versions["writerFeatures"] = protocol.writer_features or []
    like = {
        "id": str(metadata.id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": metadata.configuration,
        "createdTime": 0,
    }
    entries = ({"protocol": versions}, {"metaData": like})
    fields = {field["name"]: field.get("metadata") or {} for field in schema["fields"]}
    lengths = _lengths(fields)
    like["configuration"] = metadata.configuration | {f"{_CONSTRAINT}{name}": text for name, text in lengths.items()}
    conditions = [
        (name.removeprefix(_CONSTRAINT), text) for name, text in metadata.configuration.items() if name.startswith(_CONSTRAINT) and text is not None
    ]
    conditions += lengths.items()
    if lengths and protocol.min_writer_version < _LISTS_WRITES:
        versions["minWriterVersion"] = max(protocol.min_writer_version, _CHECKS)
    elif lengths:
        versions["writerFeatures"] = sorted({*(protocol.writer_features or ()), "checkConstraints"})
    for name, of_field in fields.items():
        if (given := of_field.get(_INVARIANT)) is not None:
            conditions.append((name, _expression(given)))
    return TableRules(
        log="\n".join(map(json.dumps, entries)),
        conditions=tuple(conditions),
        generated=tuple(name for name, of_field in fields.items() if _GENERATED in of_field),
        partitions=tuple(metadata.partition_columns),
        longest=_NAME if local else 0,
    )


def _lengths(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return names and conditions for the lengths that texts may have. Spark alone looks at them, when it writes; those of parts are left out."""
    kinds = {name: str(of_field.get(TYPE_OF_TEXT, "")) for name, of_field in fields.items()}
    return {
        f"{kind} of {name}": f"{quoted(name)} IS NULL OR char_length({quoted(name)}) <= {found[1]}"
        for name, kind in kinds.items()
        if (found := _LIMITED.fullmatch(kind)) is not None
    }


def _expression(given: Any) -> str:
    """Return the expression of an invariant, which Delta wraps twice."""
    with suppress(ValueError, TypeError, KeyError):
        return str(json.loads(given)["expression"]["expression"])
    return str(given)


def trial(rules: TableRules, batch: pa.RecordBatch, *, evolve: bool = False) -> str | None:
    """Write rows to an empty table like the output; return why delta-rs refuses them, None if it takes them.

    Raises OSError when the temporary folder cannot be written to, which is the fault of no row.

    :param evolve: columns that the table does not have are added to it.
    """
    from deltalake import DeltaTable, write_deltalake

    try:
        with _trial_folder() as folder:
            Path(folder, "_delta_log").mkdir()
            Path(folder, "_delta_log", f"{0:020d}.json").write_text(rules.log)
            like = DeltaTable(folder)
            write_deltalake(like, _whole(batch, like, rules), mode="append", schema_mode="merge" if evolve else None)
    except OSError:
        raise
    except Exception as error:  # delta-rs raises plain Exceptions, too
        if (number := _OF_THE_SYSTEM.search(str(error))) and int(number[1]) in _OF_THE_DISK:
            raise OSError(int(number[1]), os.strerror(int(number[1])), tempfile.gettempdir()) from error
        return first_line(error)
    return None


_TRIAL, _OLD = "poison-trial-", 86_400


def _trial_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for a trial, which takes seconds."""
    _remove_old_trials()
    return tempfile.TemporaryDirectory(prefix=_TRIAL, ignore_cleanup_errors=True)


@cache
def _remove_old_trials() -> None:
    """Remove folders of trials whose process was killed: those older than a day."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_TRIAL}*"):
        with suppress(OSError):
            if folder.stat().st_mtime < time.time() - _OLD:
                shutil.rmtree(folder)


MOST_SEARCHED = 1_000
"""So many rows that no condition finds are looked for, of one batch."""
_NUMBER = "poison.row"


def refused_rows(rules: TableRules, batch: pa.RecordBatch, *, evolve: bool = False) -> dict[int, str]:
    """Return the rows that a table does not take, by their places, and why; none where it refuses the batch whatever its rows are.

    One query finds rows that break a condition; trials of halves find the others that delta-rs refuses. Raises OSError as ``trial`` does.

    :param evolve: see ``trial``.
    """
    empty = batch.slice(0, 0)
    if trial(rules, empty, evolve=evolve) is not None:
        return {}
    found = _breaking(rules, batch) | {
        at: f"column {name!r}: {why}"
        for name in rules.partitions
        if name in batch.schema.names
        for at, value in enumerate(batch.column(name).to_pylist())
        if (why := rules.unnameable(name, value)) is not None
    }
    places = [at for at in range(batch.num_rows) if at not in found]
    parts, searched = [places] if places else [], 0
    while parts and searched < MOST_SEARCHED:
        part = parts.pop()
        why = trial(rules, batch.take(part), evolve=evolve)
        if why is not None and len(part) > 1:
            parts += [part[len(part) // 2 :], part[: len(part) // 2]]
        elif why is not None:
            found[part[0]], searched = why, searched + 1
    return found


def _breaking(rules: TableRules, batch: pa.RecordBatch) -> dict[int, str]:
    """Return the rows that break conditions, or have no value where there must be one; none where the engine cannot be asked."""
    from deltalake import DeltaTable, QueryBuilder, write_deltalake

    schema = json.loads(json.loads(rules.log.split("\n")[1])["metaData"]["schemaString"])
    asked = [(f"it breaks the constraint {name!r}: {text}", text) for name, text in rules.conditions]
    asked += [
        (f"column {each['name']!r} must have a value", f"{_quoted(each['name'])} IS NOT NULL") for each in schema["fields"] if not each["nullable"]
    ]
    if not asked:
        return {}
    found = dict[int, str]()
    try:
        with _trial_folder() as folder:
            write_deltalake(folder, pa.Table.from_batches([batch]).append_column(_NUMBER, pa.array(range(batch.num_rows), pa.int64())))
            engine = QueryBuilder().register("given", DeltaTable(folder))
            for why, text in asked:
                with suppress(Exception):  # one in another dialect: trials find what breaks it
                    broken = engine.execute(f"SELECT {_quoted(_NUMBER)} FROM given WHERE NOT (({text}) IS TRUE)").read_all()
                    found = dict.fromkeys((number or 0 for number in pa.table(broken).column(0).to_pylist()), why) | found
    except Exception:  # noqa: BLE001  (delta-rs raises plain Exceptions, too; trials find what is wrong with which row)
        return {}
    return found


def _whole(batch: pa.RecordBatch, table: DeltaTable, rules: TableRules) -> pa.Table:
    """Return rows with all columns of a table that are not computed, and with the table's types."""
    there = pa.schema(table.schema().to_arrow())  # type: ignore[arg-type]  # it has Arrow's C interface
    columns, fields = [], []
    for field in there:
        at = batch.schema.get_field_index(field.name)
        if at >= 0 or field.name not in rules.generated:
            fields.append(field)
            columns.append(_missing(batch.num_rows, field) if at < 0 else cast(batch.column(at), field.type))
    for field in batch.schema:
        if field.name not in there.names and not pa.types.is_null(field.type):
            fields.append(field)
            columns.append(batch.column(field.name))
    return pa.Table.from_arrays(columns, schema=pa.schema([field.with_nullable(nullable=True) for field in fields]))


def _missing(number: int, field: pa.Field[Any]) -> pa.Array[Any]:
    """Return what stands in a column that rows do not have yet; one that must have a value is a column of provenance, filled later."""
    plain = not field.nullable and not pa.types.is_nested(field.type)
    return pa.array([0] * number, pa.int64()).cast(field.type) if plain else pa.nulls(number, field.type)


class Conditions:
    """The conditions of an output, asked about rows.

    :param evolve: see ``trial``.
    """

    def __init__(self, rules: TableRules, *, evolve: bool) -> None:
        self._rules, self._evolve = rules, evolve
        self._engine: Any = None
        self._texts = " ".join(text for _, text in rules.conditions).lower()

    def broken_by(self, batch: pa.RecordBatch) -> str | None:
        """Return which condition rows break; None: none."""
        broken = self._asked(batch) if batch.num_rows <= _FEW else "?"
        if broken is None:
            return None
        refused = trial(self._rules, batch, evolve=self._evolve)
        if refused is None:
            return None
        broken = self._asked(batch) or "?" if broken == "?" and batch.num_rows == 1 else broken
        named = dict(self._rules.conditions)
        if broken in named:
            return f"it breaks the constraint {broken!r}: {named[broken]}"
        return f"{refused} (constraints: {'; '.join(text for _, text in self._rules.conditions)})"

    def _asked(self, batch: pa.RecordBatch) -> str | None:
        """Return the name of a condition that rows break; None: there is none; a question mark where only a trial shows it."""
        from deltalake import QueryBuilder

        rows = []
        for row in batch.to_pylist():
            cells = {name: _literal(value, batch.schema.field(name).type) for name, value in row.items() if name.lower() in self._texts}
            rows.append(", ".join(f"{text} AS {_quoted(name)}" for name, text in cells.items() if text is not None))
        if not all(rows):
            return "?"
        asked = ", ".join(f"(({text})) IS TRUE AS c{number}" for number, (_, text) in enumerate(self._rules.conditions))
        from_rows = " UNION ALL ".join(f"SELECT {row}" for row in rows)
        if self._engine is None:
            self._engine = QueryBuilder()
        try:
            answer = pa.table(self._engine.execute(f"SELECT {asked} FROM ({from_rows})").read_all())
        except Exception:  # noqa: BLE001  (it names a column that has no literal here, or is written in another dialect)
            return "?"
        for number, (name, _) in enumerate(self._rules.conditions):
            if not all(answer.column(number).to_pylist()):
                return name
        return None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: Any, kind: Any) -> str | None:
    """Return a value as SQL; None where it is written in no way."""
    of = pa.types
    if of.is_decimal(kind):
        name = f"Decimal128({kind.precision}, {kind.scale})"
    elif of.is_timestamp(kind):
        name = 'Timestamp(Microsecond, Some("UTC"))' if kind.tz else "Timestamp(Microsecond, None)"
    else:
        names = {pa.int8(): "Int8", pa.int16(): "Int16", pa.int32(): "Int32", pa.int64(): "Int64", pa.float32(): "Float32"}
        names |= {pa.float64(): "Float64", pa.bool_(): "Boolean", pa.string(): "Utf8", pa.date32(): "Date32"}
        if (found := names.get(kind)) is None:
            return None
        name = found
    if value is None:
        return f"arrow_cast(NULL, '{name}')"
    if isinstance(value, datetime):
        text = (value.astimezone(UTC) if value.tzinfo else value).replace(tzinfo=None).isoformat() + ("Z" if kind.tz else "")
    elif isinstance(value, (Decimal, date, bool)):
        text = format(value, "f") if isinstance(value, Decimal) else str(value)
    else:
        text = str(value)
    escaped = text.replace("'", "''")
    return f"arrow_cast('{escaped}', '{name}')"
