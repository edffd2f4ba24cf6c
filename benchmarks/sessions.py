"""Deliveries in each second of a server session whose handler does nothing: the endpoint, which is asked and answered for every message, and the
lean loop, which gets whole batches. ``python -m benchmarks.sessions [messages]`` prints one line of JSON for each round.

All figures of a line are of one run on one machine; what other processes do meanwhile moves them, and more than anything the round trip.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
import warnings
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_poison.delivery.handlers import resolve_handler
from airflow_poison.delivery.recovered import RecoveredAttempts
from airflow_poison.delivery.session import open_session
from airflow_poison.delivery.stage import StageJob
from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.schema import message_schema

if TYPE_CHECKING:
    from airflow_poison.values.message import Message

ROUNDS, BATCH = 3, 4_096
_WARM = 50


def nothing(message: Message) -> None:
    """Return."""


def batches(number: int) -> list[pa.RecordBatch]:
    """Return messages of 100 bytes, as many in a batch as a task reads at once."""
    schema = message_schema().append(pa.field("move_count", pa.int32()))
    made = []
    for start in range(0, number, BATCH):
        size = min(BATCH, number - start)
        given: dict[str, pa.Array[Any]] = {
            "lookup_id": pa.array(range(start, start + size), pa.int64()),
            "body": pa.array([b"x" * 100] * size, pa.binary()),
        }
        made.append(pa.RecordBatch.from_arrays([given.get(field.name, pa.nulls(size, field.type)) for field in schema], schema=schema))
    return made


def rate(policy: ActivationSpecification, number: int, isolation: str = "process") -> float:
    """Return deliveries a second, without the start of the sessions."""
    with tempfile.TemporaryDirectory() as folder:
        job = StageJob("", policy, resolve_handler("benchmarks.sessions:nothing"), folder, SystemClock(), isolation=isolation)
        with open_session(job, "0", RecoveredAttempts()) as session:
            session.deliver(batches(_WARM)[0])
            given = batches(number)
            started = time.perf_counter()
            for batch in given:
                session.deliver(batch)
            return number / (time.perf_counter() - started)


def round_trips(number: int) -> float:
    """Return round trips a second of 16 bytes between two processes that do nothing else: no endpoint can be faster."""
    here, there = socket.socketpair()
    if os.fork() == 0:
        here.close()
        while there.recv(16):
            there.send(b"done")
        os._exit(0)
    there.close()
    started = time.perf_counter()
    for _ in range(number):
        here.send(b"x" * 16)
        here.recv(16)
    seconds = time.perf_counter() - started
    here.close()
    os.wait()
    return number / seconds


def main(number: int) -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    stopping = {sessions: ActivationSpecification(max_server_sessions=sessions) for sessions in (1, 5)}
    lean = ActivationSpecification(max_server_sessions=1, stop_endpoint_if_delivery_fails=False)
    for _ in range(ROUNDS):
        found = {
            "endpoint, 1 session": rate(stopping[1], number),
            "endpoint, 5 sessions": rate(stopping[5], number),
            "endpoint, inline": rate(stopping[1], number, "none"),
            "lean loop": rate(lean, number),
            "round trips": round_trips(number),
        }
        shown: dict[str, float] = {name: round(per_second) for name, per_second in found.items()}
        print(json.dumps({"messages": number, **shown, "lean / endpoint": round(found["lean loop"] / found["endpoint, 1 session"], 1)}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
