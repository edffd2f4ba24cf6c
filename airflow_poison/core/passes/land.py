"""Land: put the rows that handlers returned into their outputs, once, after the final commit that settled their messages.

That commit wrote them into the queue's own table. They are added to an output under the number of that commit, so whoever dies between the two
steps is finished by the next pass without a second copy; then they are removed here.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from airflow_poison.core.errors import OutputError, SettingError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.outputs import PROVENANCE
from airflow_poison.core.outputs_as_rows import landings_of
from airflow_poison.core.store.delta import output_table
from airflow_poison.core.store.table.files import commit_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from airflow_poison.core.clock import Clock
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
    """Return outputs with the columns that their tables have. Raises OutputError, SettingError; asked before anything is claimed.

    :param store: see ``land``.
    """
    return tuple(_prepared(output, store) for output in outputs)


def _prepared(output: Output, store: QueueStore | None) -> Output:
    there = output_table.columns_of(output.uri, options_of(output, store)) if output.uri else None
    declared = output.columns
    names = None if there is None else set(there.names)
    if names is not None and not output.evolve:
        wanted = [*(declared.names if declared is not None else ()), *output.keys, *(PROVENANCE if output.provenance else ())]
        missing = next((name for name in wanted if name not in names), None)
        if missing is not None:
            raise OutputError(
                f"The output {output.uri!r} has no column {missing!r}; it has {', '.join(there.names if there is not None else ())}. Nothing was "
                "claimed: declare evolve=True to add it, or correct the declaration."
            )
    if there is not None and declared is not None:
        other = next((field for field in declared if field.name in there.names and not _same(there.field(field.name).type, field.type)), None)
        if other is not None:
            raise SettingError("output_schema", f"{other.name} {other.type}", f"the type that the output has: {there.field(other.name).type}")
    if there is None:
        return output
    own = [field for field in there if not (output.provenance and field.name in PROVENANCE)]
    more = [field for field in declared or () if field.name not in there.names]
    return replace(output, schema=_schema([*own, *more]))


def _same(one: pa.DataType, other: pa.DataType) -> bool:
    import pyarrow as pa

    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return one.equals(other) or all(any(is_text(kind) for is_text in texts) for kind in (one, other))


def _schema(fields: Sequence[pa.Field]) -> pa.Schema:  # type: ignore[type-arg]
    import pyarrow as pa

    return pa.schema(list(fields))


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables([pa.Table.from_batches([batch]) for batch in batches], promote_options="default")
