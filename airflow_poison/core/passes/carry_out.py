"""The driver's side of a submitted pass: receive as an order in the store says, and write the outcome beside it."""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
import traceback
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from airflow_poison.core.delivery.handlers import HandlerRef
from airflow_poison.core.errors import PoisonError, SparkJobError
from airflow_poison.core.passes.receive import ReceivePass
from airflow_poison.core.passes.submitted import OUTCOME, Order, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEEP_SECONDS = 600.0
"""How often an order is touched while it is carried out: maintenance removes such folders when they are a day old."""


def carry_out(order_file: Path) -> int:
    """Receive as an order says, and write the outcome beside it. Returns the exit code: 0 where the pass ended."""
    said = json.loads(order_file.read_text())
    order = Order(**{**said, **{name: tuple(said[name]) for name in ("unprocessable", "imports")}})
    with _kept(order_file):
        try:
            outcome: dict[str, Any] = {"result": _receive(order)}
        except PoisonError as error:
            outcome = _told(error)
        except Exception as error:  # noqa: BLE001  (whatever it is, the task tells it)
            traceback.print_exc()
            what = f"{type(error).__name__}: {error}"
            outcome = _told(SparkJobError(f"The driver of pass {order.key} failed: {what}\nIts own log has the rest; run the task again."))
    with suppress(FileNotFoundError):  # the folder is gone; the queue has the result
        write_whole(order_file.parent / OUTCOME, outcome)
    return 1 if "error" in outcome else 0


def _receive(order: Order) -> dict[str, object]:
    from pyspark.sql import SparkSession

    from airflow_poison.core.clock import SystemClock
    from airflow_poison.core.policies import policy_from_dict
    from airflow_poison.core.spark.engine import SparkEngine
    from airflow_poison.core.store import open_store

    store = open_store(order.store, durable=order.durable)

    by_value = base64.b64decode(order.by_value)
    receiving = ReceivePass(
        table=store.open(order.queue),
        policy=policy_from_dict(order.policy),
        handler=HandlerRef(order.handler, by_value, tuple(sys.path)) if by_value else order.handler,  # type: ignore[arg-type]  # resolved already
        engine=lambda: SparkEngine(SparkSession.builder.getOrCreate(), _say, parallelism=order.parallelism),
        clock=SystemClock(),
        max_messages=order.max_messages,
        isolation=order.isolation,
        unprocessable=order.unprocessable,
        progress=_say,
        store=store,
    )
    return receiving.run(order.key).to_dict()


@contextmanager
def _kept(order_file: Path) -> Iterator[None]:
    """Keep the order's folder young while it is worked on."""
    ended = threading.Event()

    def touch() -> None:
        while not ended.wait(KEEP_SECONDS):
            with suppress(FileNotFoundError):
                os.utime(order_file)

    threading.Thread(target=touch, name="poison-keep", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _told(error: PoisonError) -> dict[str, Any]:
    _say(f"{type(error).__name__}: {error}")
    return {"error": {"type": type(error).__name__, "text": str(error)}}


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
