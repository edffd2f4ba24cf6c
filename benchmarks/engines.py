"""DuckDB beside deltalake's own query engine (DataFusion): ``python -m benchmarks.engines [messages] [rounds]``.

A queue with so many poison messages (300,000) with JSON bodies of 1 KB and failures of 30 kinds. Both engines answer the same questions on the same
version: how many messages each type of failure has; which messages a condition on columns selects; which ones two values in the body. For that the
body has to be taken apart: DuckDB does it by itself; DataFusion has no JSON functions here, so a regular expression takes the values out, or Python
parses what is read. Each question has a process of its own. Seconds of the first answer and the median of the others, the most memory that the
process had, and how many rows the answer has. One line of JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_poison.desk import sql
from airflow_poison.passes.alter import declare
from airflow_poison.passes.messages import with_columns
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store.queue_table import QueueTable

CLOCK = SystemClock()
KINDS, CHUNK = 30, 50_000
CARRIER, DELAY = "VX", 60


def main() -> None:
    """Measure, and print one line of JSON."""
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory(prefix="poison-engines-") as folder:
        make(folder, messages)
        found = {name: apart(folder, name, rounds) for name in QUESTIONS}
    print(json.dumps({"messages": messages, "rounds": rounds, **found}))


def make(folder: str, messages: int) -> None:
    """Make the queue: the messages are sent, and then lie in poison, with their failures."""
    table = declare(open_store(folder), "orders", Msmq4(receive_error_handling="Move"), CLOCK)
    for start in range(1, messages + 1, CHUNK):
        bodies = pa.array([body(number) for number in range(start, min(start + CHUNK, messages + 1))], pa.binary())
        send(table, [pa.RecordBatch.from_pydict({"body": bodies})], key=str(start), clock=CLOCK)
    for file in table.snapshot().files:
        rows = table.read(file)
        errors = [error((number or 0) % KINDS) for number in rows["lookup_id"].to_pylist()]
        counts = {"move_count": [1] * rows.num_rows, "last_error": errors}
        table.replace_file(file, with_columns(rows, sub_queue=SubQueue.POISON.value, **counts), [])


def body(number: int) -> bytes:
    """Return a body of 1 KB."""
    found = {"number": number, "carrier": "VX" if number % 7 == 0 else "AA", "dep_delay": number % 100, "text": ""}
    found["text"] = "x" * (1024 - len(json.dumps(found)))
    return json.dumps(found).encode()


def error(kind: int) -> dict[str, str]:
    """Return the failure of a kind."""
    return {"kind": "exception", "type": f"Error{kind}", "message": f"kind {kind}", "fingerprint": f"{kind:012x}", "trace": "at shop.py"}


def duckdb_groups(table: QueueTable) -> int:
    """Count by type of failure with DuckDB."""
    with sql.messages(table, table.snapshot().files) as engine:
        return len(engine.execute("select error_type, count(*) from messages group by 1").fetchall())


def duckdb_columns(table: QueueTable) -> int:
    """Select by columns with DuckDB."""
    with sql.messages(table, table.snapshot().files) as engine:
        return len(engine.execute("select lookup_id from messages where error_type = 'Error7' and move_count >= 1").fetchall())


def duckdb_body(table: QueueTable) -> int:
    """Select by the body with DuckDB, as selections do."""
    with sql.messages(table, table.snapshot().files) as engine:
        where = sql.checked_condition(engine, f"body.carrier = '{CARRIER}' and body.dep_delay > {DELAY}")
        return len(engine.execute(f"select lookup_id from messages where {where}").fetchall())


def asked(table: QueueTable, query: str) -> pa.Table:
    """Ask DataFusion."""
    from deltalake import DeltaTable, QueryBuilder

    found = QueryBuilder().register("messages", DeltaTable(table.uri)).execute(query)
    return pa.table(found.read_all())


def datafusion_groups(table: QueueTable) -> int:
    """Count by type of failure with DataFusion."""
    return asked(table, "select last_error['type'], count(*) from messages where sub_queue = 'poison' group by 1").num_rows


def datafusion_columns(table: QueueTable) -> int:
    """Select by columns with DataFusion."""
    where = "sub_queue = 'poison' and last_error['type'] = 'Error7' and move_count >= 1"
    return asked(table, f"select lookup_id from messages where {where}").num_rows


def datafusion_body(table: QueueTable) -> int:
    """Select by the body with DataFusion and regular expressions, which holds only for bodies that one program has written."""
    text = "arrow_cast(body, 'Utf8')"
    delay = f"""cast(regexp_match({text}, '"dep_delay": ([0-9]+)')[1] as int) > {DELAY}"""
    where = f"""sub_queue = 'poison' and {text} like '%"carrier": "{CARRIER}"%' and {delay}"""
    return asked(table, f"select lookup_id from messages where {where}").num_rows


def datafusion_python(table: QueueTable) -> int:
    """Select by the body with DataFusion, whose rows Python parses."""
    found = asked(table, "select lookup_id, body from messages where sub_queue = 'poison'")
    chosen = 0
    for each in found["body"]:
        values = json.loads(each.as_py())
        chosen += values["carrier"] == CARRIER and values["dep_delay"] > DELAY
    return chosen


QUESTIONS: dict[str, Callable[[QueueTable], int]] = {
    each.__name__: each
    for each in (duckdb_groups, datafusion_groups, duckdb_columns, datafusion_columns, duckdb_body, datafusion_body, datafusion_python)
}


def apart(folder: str, name: str, rounds: int) -> dict[str, Any]:
    """Ask a question in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(measured, (folder, name, rounds))


def measured(folder: str, name: str, rounds: int) -> dict[str, Any]:
    """Return how long an answer takes, how much memory, and how many rows it has."""
    table = open_store(folder).open("orders")
    took, found = [], 0
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        found = QUESTIONS[name](table)
        took.append(time.perf_counter() - begun)
    peak = int(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")).split()[1]) // 1024
    return {"first_s": round(took[0], 3), "median_s": round(statistics.median(took[1:]), 3), "peak_mib": peak, "rows": found}


if __name__ == "__main__":
    main()
