"""What it costs to force journals to disk, as the tries after a lost machine do. ``python -m benchmarks.forced [messages]`` prints one line of JSON.

The store must lie on a disk: a file system in memory has nothing to force.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from airflow_poison.delivery.handlers import resolve_handler
from airflow_poison.delivery.recovered import RecoveredAttempts
from airflow_poison.delivery.session import open_session
from airflow_poison.delivery.stage import FORCED_ROWS, StageJob
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.values.clock import SystemClock
from benchmarks.sessions import batches, nothing

ROUNDS = 3


def rate(number: int, *, forced: bool) -> float:
    """Return deliveries a second of one session whose handler does nothing."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        given = batches(number)
        if forced:
            given = [batch.slice(start, FORCED_ROWS) for batch in given for start in range(0, batch.num_rows, FORCED_ROWS)]
        job = StageJob("", Msmq4(), resolve_handler(nothing), folder, SystemClock(), forced=forced)
        with open_session(job, "0", RecoveredAttempts()) as session:
            session.deliver(given[0].slice(0, 1))
            started = time.perf_counter()
            for batch in given:
                session.deliver(batch)
            return number / (time.perf_counter() - started)


def main(number: int = 50_000) -> None:
    """Measure in turns, and tell the best of each."""
    rates = [(rate(number, forced=False), rate(number, forced=True)) for _ in range(ROUNDS)]
    plain, forced = (max(column) for column in zip(*rates, strict=True))
    print(json.dumps({"messages": number, "plain_per_second": round(plain), "forced_per_second": round(forced), "ratio": round(plain / forced, 1)}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
