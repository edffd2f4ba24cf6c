"""Measure the desk on a queue with 1,000,000 poison messages of 1 KB and 30 kinds of failures: ``python -m benchmarks.desk 1000000``.

``groups_s``: count them by error group, warm; ``plan_s``: plan to put back those that meet a condition on their JSON; ``apply_per_s``: put nine of
ten back, so that every file is written anew; ``whole_per_s``: put all back, by second names; ``edit_per_s``: a merge patch on each; ``remove_per_s``.
``desk_memory_mib``: the largest memory of the process that does all this; ``desk_memory_quarter_mib``: the same with a quarter of the messages.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_poison.desk.actions import PlanAction, Verb
from airflow_poison.desk.applying import apply, undo
from airflow_poison.desk.plans import plan, record
from airflow_poison.desk.queries import groups
from airflow_poison.desk.selection import Selection
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    import pyarrow as pa

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable, View

KINDS = 30
_AT_ONCE = 50_000
CLOCK = SystemClock()


def desk_figures(number: int) -> dict[str, float]:
    """Return all figures by name. Making the messages and measuring are processes of their own."""
    figures = _measured(number)
    return figures | {"desk_memory_quarter_mib": _measured(number // 4)["desk_memory_mib"]}


def _measured(number: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        for what in ("make", "measure"):
            command = [sys.executable, "-m", __spec__.name, str(number), what, folder]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        figures: dict[str, float] = json.loads(printed.splitlines()[-1])
        return figures


def make(store: QueueStore, number: int) -> QueueTable:
    """Make a queue with so many poison messages, as passes leave them: a few files, the failure of each message in its row, two events of each."""
    import pyarrow as pa

    from airflow_poison.passes.alter import declare
    from airflow_poison.passes.messages import with_columns
    from airflow_poison.passes.send import send
    from airflow_poison.rules.msmq4 import Msmq4
    from airflow_poison.store.files import Replacement

    table = declare(store, "orders", Msmq4(receive_error_handling="Move"), CLOCK)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, number, _AT_ONCE):
            found = [_body(index) for index in range(start, min(number, start + _AT_ONCE))]
            yield pa.RecordBatch.from_pydict({"body": pa.array(found, pa.binary())})

    send(table, batches(), key="all", clock=CLOCK)
    began = CLOCK.now() - timedelta(days=3)
    for hours, file in enumerate(table.snapshot().files):
        rows = table.read(file)
        failures = [_failure(lookup_id or 0) for lookup_id in rows["lookup_id"].to_pylist()]
        reasons = [f"{each['type']}: {each['message']}" for each in failures]
        failed = with_columns(rows, last_error=failures, reason=reasons, sub_queue="poison", move_count=2)
        table.replace_files([Replacement(file, failed)], [])
        _record(table, failed, began + timedelta(hours=hours))
    return table


def _record(table: QueueTable, failed: pa.Table, at: datetime) -> None:
    """Record that messages have failed, as a pass does: POISON_EXCEPTION and MOVED_POISON of each."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from airflow_poison.store import data_files
    from airflow_poison.store.files import Commit
    from airflow_poison.values.events import Event, EventType
    from airflow_poison.values.schema import EVENT, events_to_table, of_groups, table_schema

    groups = of_groups(pc.struct_field(failed["last_error"].combine_chunks(), "fingerprint"))
    first, parts = 0, []
    for kind in (EventType.POISON_EXCEPTION, EventType.MOVED_POISON):
        one = events_to_table([Event(kind, at, None, 0, 2, {"place": "poison"})])
        many = one.take(pa.array([0] * failed.num_rows, pa.int64()))
        numbers = pa.array(range(first, first + failed.num_rows), pa.int32())
        for name, column in (("lookup_id", failed["lookup_id"]), ("priority", numbers), ("last_error", groups)):
            many = many.set_column(many.schema.get_field_index(name), table_schema().field(name), column)
        first += failed.num_rows
        parts.append(many)

    def attempt(view: View) -> tuple[Commit, None]:
        prefix = data_files.commit_prefix(view.state.version + 1)
        written = data_files.write_new(table.folder, EVENT, 0, pa.concat_tables(parts), prefix)
        return Commit("finish", add=[written], scratch=[written]), None

    table.change(attempt)


def _body(index: int) -> bytes:
    body = json.dumps({"id": index, "carrier": ("VX", "AA", "UA")[index % 3], "dep_delay": index % 200}).encode()
    return body[:-1] + b', "pad": "' + b"x" * (1_024 - len(body) - 12) + b'"}'


def _failure(lookup_id: int) -> dict[str, str]:
    kind = lookup_id % KINDS
    text = f"order {lookup_id * 7_919} of 'customer-{lookup_id}' has no price"
    return {"kind": "exception", "type": f"shop.Error{kind}", "message": text, "fingerprint": f"{kind:012x}", "trace": '  File "shop.py", line 7'}


def measure(table: QueueTable) -> dict[str, float]:
    """Return the figures of one queue."""
    number = sum(file.rows for file in table.snapshot().files)
    everything = Selection()
    groups(table, everything, CLOCK)
    figures = {"groups_s": _seconds(lambda: groups(table, everything, CLOCK))}
    condition = Selection(where="body.carrier = 'VX' and body.dep_delay > 60")
    figures["plan_s"] = _seconds(lambda: plan(table, condition, PlanAction(verb=Verb.PUT_BACK), CLOCK))
    figures["plan_all_s"] = _seconds(lambda: plan(table, everything, PlanAction(verb=Verb.PUT_BACK), CLOCK))
    figures["whole_per_s"] = _rate(table, PlanAction(verb=Verb.PUT_BACK), everything, number)
    some = Selection(where="lookup_id % 10 > 0")
    figures["apply_per_s"] = _rate(table, PlanAction(verb=Verb.PUT_BACK), some, number - number // 10)
    figures["edit_per_s"] = _rate(table, PlanAction(verb=Verb.EDIT, patch={"currency": "EUR"}), everything, number)
    figures["remove_per_s"] = _rate(table, PlanAction(verb=Verb.REMOVE), everything, number)
    left = sum(file.rows for file in table.snapshot().files)
    assert left == number, f"{left} of {number} messages are left"
    return figures | {"desk_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024}


def _rate(table: QueueTable, action: PlanAction, selection: Selection, number: int) -> float:
    """Apply a plan, take the time, and undo it."""
    plan_id = record(table, plan(table, selection, action, CLOCK), CLOCK, who="benchmark")
    seconds = _seconds(lambda: apply(table, plan_id, CLOCK))
    done = undo(table, plan_id, CLOCK, who="benchmark")
    assert (done.messages, done.done, done.state) == (number, 0, "undone"), done
    return number / seconds


def _seconds(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def main() -> None:
    """Measure and print one line of JSON."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    match sys.argv[2:]:
        case ["make", folder]:
            make(open_store(folder), number)
        case ["measure", folder]:
            print(json.dumps(measure(open_store(folder).open("orders"))))
        case _:
            print(json.dumps({name: round(value, 3) for name, value in desk_figures(number).items()}))


if __name__ == "__main__":
    main()
