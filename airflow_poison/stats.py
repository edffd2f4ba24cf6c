"""Metrics of passes and queues, through Airflow's stats. Off, which is Airflow's default, they cost a look at three settings.

Each metric goes out twice, as Airflow's own do: by its plain name with tags, for OpenTelemetry, Datadog and InfluxDB; and with the queue in its
name, for plain StatsD, which has no tags.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_poison.values.clock import SystemClock

if TYPE_CHECKING:
    from airflow_poison.passes.runs import ReceiveResult
    from airflow_poison.store.queue_table import QueueTable

PREFIX = "poison"
COUNTED = (
    "received",
    "settled",
    "parked",
    "poisoned",
    "postponed",
    "dropped",
    "rejected",
    "dead_lettered",
    "requeued",
    "exceptioned",
    "deliveries",
    "rollbacks",
    "crashes",
    "timeouts",
)
"""Counters of a pass, each named as its number in the pass's result."""
_SWITCHES = ("statsd_on", "statsd_datadog_enabled", "otel_on")
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")


def received(result: ReceiveResult, table: QueueTable, conn_id: str) -> None:
    """Count what a pass did, and measure its queue as it is now."""
    if not is_on():
        return
    out = _Out(table.name, conn_id)
    for name in COUNTED:
        out.count(name, getattr(result, name))
    out.count("halted", int(result.halted is not None))
    out.time("pass_duration", result.seconds)
    _measure(out, table)


def moved(what: str, messages: int, table: QueueTable, conn_id: str) -> None:
    """Count what was ``sent``, or has ``returned`` from ``retry`` to ``main``, and measure the queue."""
    if is_on():
        out = _Out(table.name, conn_id)
        out.count(what, messages)
        _measure(out, table)


@cache
def is_on() -> bool:
    """Whether Airflow sends metrics anywhere."""
    from airflow.configuration import conf

    return any(conf.getboolean("metrics", switch, fallback=False) for switch in _SWITCHES)


def _measure(out: _Out, table: QueueTable) -> None:
    from airflow_poison.passes.browse import overview

    seen = overview(table, SystemClock())
    for place, depth in seen.sub_queues.items():
        out.gauge("depth", depth.messages, place.value)
        age = timedelta(0) if depth.oldest_enqueued_at is None else seen.at - depth.oldest_enqueued_at
        out.gauge("oldest_age", max(0.0, age.total_seconds()), place.value)
    out.gauge("enabled", int(not seen.halted))


class _Out:
    """Sends the metrics of one queue."""

    def __init__(self, queue: str, conn_id: str) -> None:
        self._tags = {"queue": queue, "conn_id": conn_id}
        self._name = _NOT_ALLOWED.sub("_", queue)
        self._stats = _stats()

    def count(self, name: str, number: int) -> None:
        if number:
            for stat, tags in self._both(name):
                self._stats.incr(stat, number, tags=tags)

    def gauge(self, name: str, value: float, sub_queue: str | None = None) -> None:
        for stat, tags in self._both(name, sub_queue):
            self._stats.gauge(stat, value, tags=tags)

    def time(self, name: str, seconds: float) -> None:
        for stat, tags in self._both(name):
            self._stats.timing(stat, seconds * 1000, tags=tags)

    def _both(self, name: str, sub_queue: str | None = None) -> tuple[tuple[str, Mapping[str, str]], tuple[str, None]]:
        tags = self._tags if sub_queue is None else {**self._tags, "sub_queue": sub_queue}
        long = f"{PREFIX}.{name}.{self._name}"
        return (f"{PREFIX}.{name}", tags), (long if sub_queue is None else f"{long}.{sub_queue}", None)


def _stats() -> Any:
    from airflow.providers.common.compat.sdk import Stats

    return Stats
