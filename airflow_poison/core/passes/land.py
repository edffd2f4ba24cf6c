"""Land: put the rows that handlers returned into their outputs, once, after the final commit that settled their messages.

That commit wrote them into the queue's own table. They are added to an output under the number of that commit, so whoever dies between the two
steps is finished by the next pass without a second copy; then they are removed here.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.core.errors import OutputError, SettingError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.output_rules import trial
from airflow_poison.core.output_values import delta_type, same_name
from airflow_poison.core.outputs import PROVENANCE
from airflow_poison.core.outputs_as_rows import landings_of
from airflow_poison.core.store.delta import output_table
from airflow_poison.core.store.table.files import commit_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.output_rules import TableRules
    from airflow_poison.core.outputs import Output
    from airflow_poison.core.store import QueueStore
    from airflow_poison.core.store.files import DataFile
    from airflow_poison.core.store.queue_table import QueueTable

    Deliver = Callable[[pa.Table, str], object]


def land(table: QueueTable, clock: Clock, deliver: Deliver | None = None, store: QueueStore | None = None) -> dict[str, int]:
    """Put everything that has not landed yet where it belongs; return how many rows each output got, by its name.

    :param deliver: takes the rows that go to a function, with a key that is the same whenever they are given again; None: they wait.
    :param store: has the options of outputs in an object store; None: they come from the environment.
    Raises OutputError, and what ``deliver`` raises; then the rows wait for the next call.
    """
    landed = Counter[str]()
    for version, files in groupby(table.snapshot().landings, lambda file: commit_version(file.path) or 0):
        landed.update(_land_commit(table, version, list(files), clock, deliver, store=store))
    return dict(landed)


def _land_commit(
    table: QueueTable, version: int, files: Sequence[DataFile], clock: Clock, deliver: Deliver | None, *, store: QueueStore | None
) -> Counter[str]:
    """Put the rows of one commit where they belong."""
    landed, waits = Counter[str](), False
    found: dict[Output, list[pa.RecordBatch]] = {}
    for file in files:
        for landing in landings_of(table.read(file)):
            found.setdefault(landing.output, []).extend(landing.batches)
    key = hashlib.sha256("|".join(sorted(file.path for file in files)).encode()).hexdigest()[:32]
    for output, batches in found.items():
        if not output.uri:
            if deliver is None:
                waits = True
                continue
            reach("pass.land.before_deliver")
            deliver(_joined(batches), f"{table.name}-{version}-{key}-{output.name}")
        else:
            application = f"poison:{table.name}:{table.identity()}:{output.name}"
            output_table.land(output, batches, application, version, f"{key}:{output.name}", options=options_of(output, store))
        landed[output.name] += sum(batch.num_rows for batch in batches)
        reach("pass.land.after_write")
    if not waits:
        table.remove_landings(files, clock.now())
    return landed


def options_of(output: Output, store: QueueStore | None) -> Mapping[str, str]:
    """Return the options of the object store that an output is in; none: they come from the environment."""
    return {} if store is None else store.options_for(output.uri)


def prepared(outputs: Sequence[Output], store: QueueStore | None = None) -> tuple[Output, ...]:
    """Return outputs with the columns that their tables have, and with what these want of rows; asked before anything is claimed.

    :param store: see ``land``.
    Raises OutputError for a table that does not take rows, and for a place where none can be; SettingError for columns of other types.
    """
    return tuple(_prepared(output, store) if output.uri else output for output in outputs)


def _prepared(output: Output, store: QueueStore | None) -> Output:
    if store is not None:
        _refuse_place(output, store)
    found = output_table.table_of(output.uri, options_of(output, store))
    if found is None:
        return output
    there, rules, is_append_only = found
    declared = output.columns
    _refuse_names(output, there)
    if declared is not None:
        other = next((field for field in declared if field.name in there.names and not _same(there.field(field.name).type, field.type)), None)
        if other is not None:
            raise SettingError("output_schema", f"{other.name} {other.type}", f"the type that the output has: {there.field(other.name).type}")
    own = [field for field in there if field.name not in rules.generated and not (output.provenance and field.name in PROVENANCE)]
    more = [field for field in declared or () if field.name not in there.names]
    if output.keys and (is_append_only or rules.generated):
        why: str | None = f"{'it is append-only' if is_append_only else f'it computes {rules.generated[0]!r}'}, and output_keys replace rows"
    else:
        why = _refusal(there, rules)
    if why is not None:
        raise OutputError(f"The output {output.uri!r} cannot be written to: {why}. Nothing was claimed: change the table, or declare another output.")
    return replace(output, schema=_schema([*own, *more]), rules=rules)


def _refuse_place(output: Output, store: QueueStore) -> None:
    """Raise OutputError for an output in a queue's folder, at the store's root or above it: maintenance of one would remove files of the other."""
    root = str(getattr(store, "uri", "")).removeprefix("file://").rstrip("/")
    if not root:
        return
    place = output.uri if "://" in output.uri else str(Path(output.uri).absolute())
    root = root if "://" in root else str(Path(root).absolute())
    queue = place.removeprefix(f"{root}/").partition("/")[0] if place.startswith(f"{root}/") else ""
    if f"{root}/".startswith(f"{place}/") or (queue and queue in set(store.names())):
        of = f"in the folder of the queue {queue!r}" if queue else f"where the store {root!r} is"
        raise OutputError(f"The output {output.uri!r} is {of}: maintenance of one would remove files of the other. Nothing was claimed: move it.")


def _refuse_names(output: Output, there: pa.Schema) -> None:
    """Raise OutputError for declared columns that a table does not have, or has in another case."""
    names, declared = set(there.names), output.columns
    wanted = [*(declared.names if declared is not None else ()), *output.keys, *(PROVENANCE if output.provenance else ())]
    missing = [name for name in wanted if name not in names]
    if missing and not output.evolve:
        raise OutputError(
            f"The output {output.uri!r} has no column {missing[0]!r}; it has {', '.join(there.names)}. Nothing was "
            "claimed: declare evolve=True to add it, or correct the declaration."
        )
    if twice := same_name([*there.names, *dict.fromkeys(missing)]):
        raise OutputError(
            f"The output {output.uri!r} has a column {twice[0]!r}, and {twice[1]!r} differs by case alone. Nothing was claimed: correct the "
            "declaration."
        )


def _refusal(there: pa.Schema, rules: TableRules) -> str | None:
    """Return why a table takes no row at all; None: it takes some."""
    import pyarrow as pa

    if binary := [name for name in rules.partitions if name in there.names and pa.types.is_binary(there.field(name).type)]:
        return f"it is partitioned by {binary[0]!r}, and bytes do not come back from the names of folders as they were"
    return trial(rules, pa.RecordBatch.from_pylist([], schema=pa.schema([])))


def _same(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether a table has a declared type; it may have names and nulls of its own in there."""
    try:
        return str(delta_type(one)).replace(" not null", "") == str(delta_type(other)).replace(" not null", "")
    except ValueError:
        return one.equals(other)


def _schema(fields: Sequence[pa.Field]) -> pa.Schema:  # type: ignore[type-arg]
    import pyarrow as pa

    return pa.schema(list(fields))


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables([pa.Table.from_batches([batch]) for batch in batches], promote_options="default")
