"""CPU time of a delivery in one process, without Spark: good, with a row that lands, failing and delivered again, hopeless.

``python -m benchmarks.deliveries [messages]``.

It runs the receive stage inline over messages of 100 bytes whose handler does nothing but return or raise, settlement included, and prints one
line of JSON: microseconds of CPU for each delivery, the least of several rounds. Other processes of the machine move it little.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.delivery.handlers import resolve_handler
from airflow_poison.delivery.returned import LearnedColumns
from airflow_poison.delivery.stage import StageJob, deliver_partition
from airflow_poison.outputs.output import outputs_of
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.values.clock import SystemClock
from benchmarks.sessions import batches, nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from airflow_poison.outputs.output import Output
    from airflow_poison.values.message import Message

ROUNDS = 7
POLICY = Msmq4(retry_cycle_delay=timedelta(0), receive_error_handling="Move")
DELIVERIES = POLICY.receive_retry_count + 1


def landing(message: Message) -> dict[str, object]:
    """Return a row."""
    return {"id": message.lookup_id, "amount": 1.5}


def flaky(message: Message) -> None:
    """Fail twice, then return."""
    if message.abort_count < 2:
        raise TimeoutError("the database was locked")


def hopeless(_message: Message) -> None:
    """Fail always, and alike."""
    raise ValueError("this order can never be processed")


def telling(message: Message) -> None:
    """Fail always, each message with a text of its own."""
    raise ValueError(f"order {message.lookup_id} can never be processed")


def microseconds(handler: Callable[[Message], object], given: Sequence[pa.RecordBatch], number: int, outputs: tuple[Output, ...] = ()) -> float:
    """Return the CPU time of a message."""
    found = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            job = StageJob("bench", POLICY, resolve_handler(handler), folder, SystemClock(), isolation="none", outputs=outputs)
            for output in outputs:
                assert output.columns is not None, "they are declared"
                LearnedColumns(Path(folder)).write(output.name, output.columns)
            gc.collect()
            started = time.process_time()
            for _rows in deliver_partition(job, "0", given):
                pass
            found.append(time.process_time() - started)
    return min(found) / number * 1e6


def main(number: int = 20_000) -> None:
    """Measure and print."""
    given = batches(number)
    good = microseconds(nothing, given, number)
    figures = {
        "good": good,
        "with a row": microseconds(landing, given, number, outputs_of("/nowhere", schema="id long, amount double")),
        "failing": (microseconds(flaky, given, number) - good) / 2,
        "hopeless": microseconds(hopeless, given, number) / DELIVERIES,
        "hopeless, texts that differ": microseconds(telling, given, number) / DELIVERIES,
    }
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
