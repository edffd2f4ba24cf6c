"""Many queues in one process with one Spark: their endpoints really run at the same time, and each is ended, halted and told of alone."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison import ActivationSpecification, Msmq4, ServiceBroker
from airflow_poison.passes.alter import declare
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.runs import QueueRun, Stop, receive_many
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.spark.engine import SparkEngine
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import ClaimLostError, ReceiveStoppedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from airflow_poison.delivery.handlers import HandlerLike
    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.passes.engines import Engine
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store.files import Claim
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # PySpark leaves results' sockets to the garbage collector
CLOCK = SystemClock()
FAULT = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Fault")
PATIENCE = 60.0


@dataclass(frozen=True)
class Meets:
    """A handler that returns when all have begun: endpoints one after the other would never meet.

    :param others: how many handlers meet.
    """

    folder: str
    name: str
    others: int

    def __call__(self, message: Message) -> None:
        Path(self.folder, self.name).touch()
        wait_until(lambda: len(list(Path(self.folder).iterdir())) == self.others)


@dataclass(frozen=True)
class Hangs:
    """A handler that says that it was called, and never returns."""

    begun: str

    def __call__(self, message: Message) -> None:
        Path(self.begun).touch()
        threading.Event().wait()


def wait_until(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < deadline, "they did not meet"
        threading.Event().wait(0.02)


def refuse_bad(message: Message) -> None:
    if message.text == "bad":
        raise ValueError(message.text)


@dataclass(frozen=True)
class Many:
    """Queues of one store, received from with one Spark."""

    store: DeltaStore
    spark: SparkSession

    def table(self, name: str, policy: Policy, *bodies: str) -> QueueTable:
        table = declare(self.store, name, policy, CLOCK)
        if bodies:
            send(table, messages_to_batches(bodies), key="sent", clock=CLOCK)
        return table

    def run(self, table: QueueTable, policy: Policy, handler: HandlerLike, engine: Callable[[], Engine] | None = None) -> QueueRun:
        made = ReceivePass(
            table=table, policy=policy, handler=handler, engine=engine or (lambda: SparkEngine(self.spark)), clock=CLOCK, store=self.store
        )
        return QueueRun(table.name, lambda: (made, f"run-{table.name}"))


@pytest.fixture
def many(tmp_path: Path, spark: SparkSession) -> Many:
    return Many(DeltaStore(str(tmp_path / "store"), durable=False), spark)


@pytest.mark.campaign
def test_endpoints_of_halting_queues_share_the_cores_at_the_same_time(many: Many, tmp_path: Path) -> None:
    """Each is one Spark task; Spark has two cores here."""
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    runs = [many.run(many.table(name, FAULT, "good"), FAULT, Meets(str(meeting), name, 2)) for name in ("orders", "bills")]

    result = receive_many(runs, parallelism=2)

    assert {queue: (one.settled, one.rollbacks) for queue, one in result.results.items()} == {"orders": (1, 0), "bills": (1, 0)}


def test_every_queue_has_its_own_state_events_and_result(many: Many) -> None:
    broker, endpoint = ServiceBroker(), ActivationSpecification(max_server_sessions=1)
    moves = Msmq4(receive_retry_count=1, max_retry_cycles=0, receive_error_handling="Move")
    tables = {
        "broker": many.table("broker", broker, "good", "bad", "good"),
        "endpoint": many.table("endpoint", endpoint, "bad", "good"),
        "listener": many.table("listener", FAULT, "good", "good", "bad"),
        "moves": many.table("moves", moves, "bad", "good", "bad"),
    }
    policies: dict[str, Policy] = {"broker": broker, "endpoint": endpoint, "listener": FAULT, "moves": moves}

    result = receive_many([many.run(table, policies[name], refuse_bad) for name, table in tables.items()], parallelism=3)

    assert {name: table.snapshot().control.state.value for name, table in tables.items()} == {
        "broker": "disabled",
        "endpoint": "stopped",
        "listener": "faulted",
        "moves": "enabled",
    }
    ends = {name: (one.settled, one.rollbacks, one.untouched, one.poisoned) for name, one in result.results.items()}
    assert ends == {"broker": (1, 5, 1, 0), "endpoint": (0, 1, 1, 0), "listener": (2, 1, 0, 0), "moves": (1, 4, 0, 2)}
    assert {name: [(event.type.value, event.lookup_id) for event in table.events()] for name, table in tables.items()} == {
        "broker": [("QUEUE_DISABLED", 2)],
        "endpoint": [("STOPPED", 1)],
        "listener": [("POISON_EXCEPTION", 3), ("FAULTED", 3)],
        "moves": [("POISON_EXCEPTION", 1), ("POISON_EXCEPTION", 3), ("MOVED_POISON", 1), ("MOVED_POISON", 3)],
    }
    assert [result.results[name].counters for name in tables] == [{"rollbacks": 5}, {"sequential_failures": 1}, {}, {}]
    assert result.halted == ["broker", "endpoint", "listener"]


@pytest.mark.campaign
def test_a_stop_ends_the_jobs_of_all_queues_and_the_next_run_goes_on(many: Many, tmp_path: Path) -> None:
    stop, begun = Stop(), [tmp_path / "orders", tmp_path / "bills"]
    tables = [many.table(place.name, FAULT, "good") for place in begun]

    def ask() -> None:
        wait_until(lambda: all(place.exists() for place in begun))
        stop.ask()

    asking = threading.Thread(target=ask)
    asking.start()
    hanging = [many.run(table, FAULT, Hangs(str(place))) for table, place in zip(tables, begun, strict=True)]
    result = receive_many(hanging, parallelism=2, stop=stop)
    asking.join()

    assert [type(error) for error in result.errors.values()] == [ReceiveStoppedError] * 2
    assert [len(table.snapshot().claims) for table in tables] == [1, 1]
    again = receive_many([many.run(table, FAULT, refuse_bad) for table in tables], parallelism=2)
    assert [(one.settled, one.untouched, one.halted is None) for one in again.results.values()] == [(0, 0, False)] * 2


class LosesItsClaim(SparkEngine):
    """Spark, whose claim is lost as soon as the handler was called."""

    def __init__(self, spark: SparkSession, begun: Path) -> None:
        super().__init__(spark)
        self.begun = begun

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        def lose() -> None:
            keep_alive()
            if self.begun.exists():
                raise ClaimLostError("another pass has it")

        super().run(table, claim, job, keep_alive=lose)


def test_a_lost_claim_ends_the_job_of_its_queue_and_no_other(many: Many, tmp_path: Path) -> None:
    lost, meeting = tmp_path / "lost", tmp_path / "meeting"
    meeting.mkdir()
    orders, bills = many.table("orders", FAULT, "good"), many.table("bills", FAULT, *["good"] * 20)
    told: list[str] = []

    def note(queue: str, _end: object) -> None:
        told.append(queue)
        (meeting / queue).touch()

    runs = [
        many.run(orders, FAULT, Hangs(str(lost)), lambda: LosesItsClaim(many.spark, lost)),
        many.run(bills, FAULT, Meets(str(meeting), "bills", 2)),
    ]
    result = receive_many(runs, parallelism=2, ended=note)

    assert isinstance(result.errors["orders"], ClaimLostError)
    assert (told, result.results["bills"].settled) == (["orders", "bills"], 20)
