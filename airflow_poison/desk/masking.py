"""The mask of a queue: which values of its messages are hidden (``values.masking``), recorded in the queue.

Settings of a queue's desk, recorded in the queue: masks and rules. Each part has a module of its own.

Hidden values in SQL: the expressions and functions by which queries on messages see none.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_poison.values.events import Event, EventType
from airflow_poison.values.masking import EDITS, HIDDEN, PART, SINCE, HiddenValues, Masking

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import duckdb

    from airflow_poison.store.control import Control
    from airflow_poison.store.files import DataFile
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

_SKEW = timedelta(minutes=10)
"""So much may the clocks of a sender and of the user who set the mask differ."""


def is_before(file: DataFile, desk: Mapping[str, object]) -> bool:
    """Whether a file may have failures that were recorded before the mask was what it is: failures of later messages have nothing hidden in them."""
    since = desk.get(SINCE)
    return since is None or file.min_enqueued_at is None or file.min_enqueued_at < datetime.fromisoformat(str(since)) + _SKEW


def hidden_properties(masking: Masking) -> str:
    """Return the expression for properties without what is hidden; what people have edited is hidden whole."""
    names = [EDITS, *(name for name in masking.property_names if name is not None)]
    hidden = "true" if None in masking.property_names else f"list_contains({literals(names)}, e.key)"
    return f"map_from_entries([{{'k': e.key, 'v': case when {hidden} then {literal(HIDDEN)} else e.value end}} for e in map_entries(properties)])"


def add_functions(engine: duckdb.DuckDBPyConnection, masking: Masking) -> None:
    """Let queries hide values, a vector of messages at a time. The engine reads annotations, so they name nothing that only types need."""
    import pyarrow as pa

    def hidden(bodies: Any) -> Any:
        return pa.array([None if body is None else masking.body(body) for body in bodies.to_pylist()], pa.binary())

    def of_texts(hide: Callable[[HiddenValues, str], str]) -> Callable[..., Any]:
        def shown(bodies: Any, properties: Any, texts: Any) -> Any:
            rows = zip(bodies.to_pylist(), properties.to_pylist(), texts.to_pylist(), strict=True)
            return pa.array([text and hide(masking.values(body or b"", json.loads(cell or "{}")), text) for body, cell, text in rows], pa.string())

        return shown

    add: Any = partial(engine.create_function, type="arrow", null_handling="special")  # its types know only the names of its own enumerations
    said = ["BLOB", "VARCHAR", "VARCHAR"]
    add("masked_body", hidden, ["BLOB"], "BLOB")
    add("masked_text", of_texts(HiddenValues.hide), said, "VARCHAR")
    add("masked_trace", of_texts(HiddenValues.hide_trace), said, "VARCHAR")


def literals(texts: Sequence[str]) -> str:
    """Return a list of texts as SQL."""
    return f"[{', '.join(literal(text) for text in texts)}]"


def literal(text: str) -> str:
    """Return a text as SQL."""
    quoted = text.replace("'", "''")
    return f"'{quoted}'"


def configure(table: QueueTable, clock: Clock, **parts: object) -> Mapping[str, object]:
    """Record parts of a queue's desk, in one commit, and return all; the others stay. Nothing happens when they are so already.

    :param parts: plain JSON values by name, as each part's ``to_dict`` gives them; None takes one out.
    """
    now = clock.now()

    def change(control: Control) -> Control:
        wanted = {name: value for name, value in {**control.desk, **parts}.items() if value is not None}
        if wanted.get(PART) != control.desk.get(PART):
            wanted[SINCE] = now.isoformat()
        return control if wanted == control.desk else replace(control, desk=wanted)

    def told(before: Control, after: Control) -> list[Event]:
        names = sorted(name for name in parts if before.desk.get(name) != after.desk.get(name))
        return [Event(EventType.POLICY_CHANGED, now, details={"desk": ", ".join(names)})] if names else []

    return table.alter(change, told, now).desk


def declare_mask(table: QueueTable, clock: Clock, mask: object) -> Masking | None:
    """Record which values of its messages a queue hides, in one commit, where they are others than before; return the mask.

    Whatever is shown or written down from then on has none of them; failures that were recorded before are shown without them.

    :param mask: a path, or a list of paths; an empty one: nothing is hidden any more.
    Raises SettingError for what is no path.
    """
    masking = Masking.read(mask)
    if Masking.recorded(table.snapshot().control.desk) != masking:
        configure(table, clock, **{PART: None if masking is None else list(masking.paths)})
    return masking
