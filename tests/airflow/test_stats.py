"""Metrics on the wire: a listener on loopback gets what StatsD is sent."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG

from airflow_poison import Msmq4, stats
from airflow_poison.operators.manage import QueueReturnOperator
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.passes.alter import declare, disable
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.runs import ReceiveResult
from airflow_poison.passes.send import send
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.mapping import ColumnMapping, rows_to_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from tests.airflow.conftest import Ran

pytest.importorskip("statsd")

POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")


class Listener:
    """A StatsD server that remembers."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(5)

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    def heard(self, until: str) -> dict[str, str]:
        """Return the metrics up to the last of a task, by name: value and kind."""
        found: dict[str, str] = {}
        while until not in found:
            for line in self.socket.recv(65_536).decode().splitlines():
                name, _, value = line.partition(":")
                found[name] = value
        return {name.removeprefix("airflow."): value for name, value in found.items() if ".poison." in name}


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """Airflow's own StatsD logger, made from its own settings, pointed at the listener."""
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory
    from airflow.sdk.observability.stats import initialize

    listener = Listener()
    for name, value in {"STATSD_ON": "True", "STATSD_HOST": "127.0.0.1", "STATSD_PORT": str(listener.port)}.items():
        monkeypatch.setenv(f"AIRFLOW__METRICS__{name}", value)
    stats.is_on.cache_clear()
    initialize(factory=get_stats_factory(), export_legacy_names=True)
    yield listener
    monkeypatch.undo()
    stats.is_on.cache_clear()
    initialize(factory=get_stats_factory(), export_legacy_names=True)
    listener.socket.close()


@pytest.fixture
def orders(store: QueueStore) -> QueueTable:
    table = declare(store, "or.ders", POLICY, SystemClock())
    now = SystemClock().now()
    send(table, rows_to_batches(["bad", "good", "bad"], ColumnMapping(), now), key="a" * 40, clock=SystemClock())
    return table


def refuse_bad(message: Any) -> None:
    if message.body == b"bad":
        raise ValueError("bad")


def test_a_pass_counts_its_messages_and_measures_its_queue(listener: Listener, orders: QueueTable) -> None:
    receive = ReceivePass(table=orders, policy=POLICY, handler=refuse_bad, engine=LocalEngine, clock=SystemClock(), isolation="none")
    stats.received(receive.run("0" * 40), orders, "mine")
    heard = listener.heard("airflow.poison.enabled.or_ders")
    for name, value in {"received": "3|c", "settled": "1|c", "poisoned": "2|c", "deliveries": "3|c", "rollbacks": "2|c"}.items():
        assert heard[f"poison.{name}"] == heard[f"poison.{name}.or_ders"] == value
    assert {name: heard[f"poison.depth.or_ders.{name}"] for name in ("main", "retry", "poison")} == {"main": "0|g", "retry": "0|g", "poison": "2|g"}
    assert re.fullmatch(r"\d+\.\d+\|g", heard["poison.oldest_age.or_ders.poison"])
    assert re.fullmatch(r"\d+\.\d+\|ms", heard["poison.pass_duration"])
    assert heard["poison.enabled.or_ders"] == "1|g"
    assert "poison.crashes" not in heard, "what did not happen is not counted"
    disable(orders, SystemClock(), "")
    stats.moved("returned", 0, orders, "mine")
    assert listener.heard("airflow.poison.enabled.or_ders")["poison.enabled.or_ders"] == "0|g"


def test_tasks_send_metrics(listener: Listener, store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    with DAG("stats", schedule=None) as dag:
        send = QueueSendOperator(task_id="send", queue_name="orders", messages=["a", "b"], policy=POLICY)
        send >> QueueReturnOperator(task_id="return", queue_name="orders")
    assert run_dag(dag).state == "success"
    heard = listener.heard("airflow.poison.enabled.orders")
    assert heard["poison.sent.orders"] == "2|c"
    assert heard["poison.depth.orders.main"] == "2|g"


def test_off_nothing_is_read(orders: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "_measure", lambda *_: pytest.fail("the queue was read"))
    monkeypatch.setattr(stats, "_stats", lambda: pytest.fail("stats were asked for"))
    assert not stats.is_on()
    stats.moved("sent", 1, orders, "mine")
    stats.moved("returned", 1, orders, "mine")
    stats.received(ReceiveResult("or.ders", "key", received=1), orders, "mine")


def test_every_number_of_a_pass_that_is_counted_is_one_of_its_result(orders: QueueTable) -> None:
    assert all(getattr(ReceiveResult("orders", "key"), name) == 0 for name in stats.COUNTED)
