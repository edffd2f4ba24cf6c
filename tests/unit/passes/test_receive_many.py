"""Passes over many queues side by side: each queue has its own rules, handler, state and result, and stops no other."""

from __future__ import annotations

import json
import pickle
import sys
import threading
import types
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison import ServiceBroker
from airflow_poison.delivery.handlers import carry_by_value
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.runs import QueueRun, ReceiveManyResult, ReceiveResult, Stop, receive_many
from airflow_poison.store.control import QueueState
from airflow_poison.store.memory import MemoryStore
from airflow_poison.values.errors import ExecutorError, HandlerNotFoundError, QueueHaltedError, QueueNotFoundError, ReceiveStoppedError, SettingError
from tests.given.passes import NO_RETRY, DiedError, DyingEngine, Handler, Queue, a_queue, calls, one_each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from airflow_poison.delivery.handlers import HandlerRef, Transformation
    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.outputs.output import Output
    from airflow_poison.passes.engines import Engine
    from airflow_poison.passes.receive import ReceivePass
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore
    from airflow_poison.store.files import Claim
    from airflow_poison.store.queue_table import QueueTable

FAULT = replace(NO_RETRY, receive_error_handling="Fault")
DROP = replace(NO_RETRY, receive_error_handling="Drop")


@dataclass(frozen=True)
class Work:
    """Several queues of one store, each with a file of its own for its handler's calls."""

    store: QueueStore
    folder: Path

    def queue(self, name: str, policy: Policy = NO_RETRY, *bodies: str) -> Queue:
        place = self.folder / name
        place.mkdir(exist_ok=True)
        plain = a_queue(self.store, place, NO_RETRY)
        queue = plain.having(table=declare(self.store, name, policy, plain.clock), policy=policy, handler=Handler(str(place / "calls")))
        return queue.sent(*bodies) if bodies else queue


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(MemoryStore(), tmp_path)


def run_of(queue: Queue, **changes: object) -> QueueRun:
    return QueueRun(queue.table.name, lambda: (queue.a_pass(**changes), f"run-{queue.table.name}"))


def failing(name: str, error: Exception) -> QueueRun:
    def open_it() -> tuple[ReceivePass, str]:
        raise error

    return QueueRun(name, open_it)


def test_each_queue_has_its_own_rules_handler_and_result(work: Work) -> None:
    orders, bills, notes = work.queue("orders", NO_RETRY, "good", "bad"), work.queue("bills", DROP, "bad", "bad"), work.queue("notes")

    result = receive_many([run_of(orders), run_of(bills), run_of(notes)], parallelism=2)

    assert list(result.results) == ["orders", "bills", "notes"]
    assert [(one.settled, one.poisoned, one.dropped) for one in result.results.values()] == [(1, 1, 0), (0, 0, 2), (0, 0, 0)]
    assert calls(orders.handler) == calls(bills.handler) == one_each(1, 2)
    assert (result.errors, result.halted) == ({}, [])


def test_totals_are_sums_and_the_whole_is_plain_values(work: Work) -> None:
    runs = [run_of(work.queue("orders", NO_RETRY, "good", "bad")), run_of(work.queue("bills", NO_RETRY, "good"))]

    result = receive_many(runs, parallelism=1)

    totals = result.totals()
    assert (totals["received"], totals["settled"], totals["poisoned"], totals["deliveries"]) == (3, 2, 1, 3)
    assert totals["seconds"] == result.seconds > 0
    told = json.loads(json.dumps(result.to_dict()))
    assert (set(told), set(told["queues"]), told["queues"]["bills"]["settled"]) == ({"queues", "errors", "halted", "totals"}, {"orders", "bills"}, 1)


def test_a_queue_that_halts_is_halted_missing_broken_or_blocked_stops_no_other(work: Work) -> None:
    faulting, faulted, good = work.queue("faulting", FAULT, "bad", "good"), work.queue("faulted", FAULT, "bad"), work.queue("good", NO_RETRY, "good")
    faulted.receive("before")
    blocked = work.queue("blocked", NO_RETRY, "good")
    blocked.table.alter(lambda control: control.blocked(1, blocked.clock.at.replace(year=3000)))
    runs = [
        run_of(faulting),
        run_of(faulted),
        failing("missing", QueueNotFoundError("no queue")),
        run_of(work.queue("wrong", NO_RETRY, "good"), handler="no.such:handler"),
        run_of(blocked),
        run_of(good),
    ]

    result = receive_many(runs, parallelism=1)

    assert {queue: type(error) for queue, error in result.errors.items()} == {
        "faulted": QueueHaltedError,
        "missing": QueueNotFoundError,
        "wrong": HandlerNotFoundError,
    }
    assert (result.halted, list(result.failed)) == (["faulting", "faulted"], ["missing", "wrong"])
    assert result.results["good"].settled == 1
    assert (result.results["blocked"].received, result.results["blocked"].blocked_until) == (0, "3000-01-01T00:00:00+00:00")
    assert (faulting.table.snapshot().control.state, good.table.snapshot().control.state) == (QueueState.FAULTED, QueueState.ENABLED)


def test_sb_7_each_queue_counts_its_own_rollbacks(work: Work) -> None:
    """A commit in one queue does not set the counter of another to 0."""
    sick, healthy = work.queue("sick", ServiceBroker(), "bad"), work.queue("healthy", ServiceBroker(), *["good"] * 50)

    result = receive_many([run_of(sick), run_of(healthy)], parallelism=2)

    assert (sick.table.snapshot().control.state, healthy.table.snapshot().control.state) == (QueueState.DISABLED, QueueState.ENABLED)
    assert (result.halted, result.results["sick"].counters, result.results["healthy"].counters) == (["sick"], {"rollbacks": 5}, {})
    assert (sick.happened(), healthy.happened()) == ([("QUEUE_DISABLED", 1)], [])


def test_a_queue_that_is_named_twice_is_refused_before_anything_is_claimed(work: Work) -> None:
    orders, bills = work.queue("orders", NO_RETRY, "good"), work.queue("bills")

    with pytest.raises(SettingError, match="queues='orders' is not allowed; allowed: every queue once"):
        receive_many([run_of(orders), run_of(bills), run_of(orders)], parallelism=2)

    assert orders.table.snapshot().files != ()
    assert calls(orders.handler) == Counter()


@dataclass(frozen=True)
class Together(LocalEngine):
    """An engine that waits until so many of them deliver at the same time, and notes how many there were at most."""

    barrier: threading.Barrier
    delivering: list[str]
    most: list[int]

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        self.delivering.append(table.name)
        self.barrier.wait(30)
        self.most.append(len(self.delivering))
        self.barrier.wait(30)
        super().run(table, claim, job, keep_alive=keep_alive)
        self.delivering.remove(table.name)


def test_as_many_queues_as_asked_for_are_received_from_at_the_same_time_and_no_more(work: Work) -> None:
    engine = Together(threading.Barrier(3), [], [])
    queues = [work.queue(f"queue-{number}", NO_RETRY, "good") for number in range(6)]

    result = receive_many([run_of(queue, engine=lambda: engine) for queue in queues], parallelism=3)

    assert [one.settled for one in result.results.values()] == [1] * 6
    assert max(engine.most) == 3


class BrokenEngine(LocalEngine):
    """Delivers everything, then fails before its outcome is staged."""

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        super().run(table, claim, job, keep_alive=keep_alive)
        raise OSError("no space left")


def test_running_them_again_finishes_the_claims_of_those_that_failed(work: Work) -> None:
    orders, bills = work.queue("orders", NO_RETRY, "good", "bad"), work.queue("bills", NO_RETRY, "good")

    first = receive_many([run_of(orders, engine=BrokenEngine), run_of(bills)], parallelism=2)
    again = receive_many([run_of(orders), run_of(bills)], parallelism=2)

    assert [str(error) for error in first.errors.values()] == ["no space left"]
    assert (again.results["orders"].settled, again.results["orders"].poisoned, again.results["bills"].received) == (1, 1, 0)
    assert calls(orders.handler) == one_each(1, 2)


class Unready(LocalEngine):
    """Its executors lack something."""

    def prepare(self, table: QueueTable, handler: HandlerRef | Transformation, outputs: Sequence[Output] = ()) -> None:
        raise ExecutorError(f"cannot load {handler.name}")


def test_engines_that_cannot_deliver_say_so_before_anything_is_claimed(work: Work) -> None:
    queue = work.queue("orders", NO_RETRY, "good")
    before = queue.table.snapshot()

    result = receive_many([run_of(queue, engine=Unready)], parallelism=1)

    assert "cannot load" in str(result.errors["orders"])
    assert queue.table.snapshot() == before


@dataclass(frozen=True)
class Asking(LocalEngine):
    """A handler's engine that asks for a stop, then delivers."""

    stop: Stop

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        self.stop.ask()
        super().run(table, claim, job, keep_alive=keep_alive)


def test_a_stop_ends_what_is_delivered_now_begins_nothing_more_and_keeps_the_claims(work: Work) -> None:
    stop = Stop()
    orders, bills = work.queue("orders", NO_RETRY, "good"), work.queue("bills", NO_RETRY, "good")

    result = receive_many([run_of(orders, engine=lambda: Asking(stop)), run_of(bills)], parallelism=1, stop=stop)

    assert [type(error) for error in result.errors.values()] == [ReceiveStoppedError] * 2
    assert [len(queue.table.snapshot().claims) for queue in (orders, bills)] == [1, 0]
    again = receive_many([run_of(orders), run_of(bills)], parallelism=2)
    assert [one.settled for one in again.results.values()] == [1, 1]


def test_the_death_of_one_thread_ends_all_and_is_raised(work: Work) -> None:
    orders, bills = work.queue("orders", NO_RETRY, "good"), work.queue("bills", NO_RETRY, "good")

    with pytest.raises(DiedError):
        receive_many([run_of(orders, engine=DyingEngine), run_of(bills)], parallelism=1)


class Told(Stop):
    """Lets somebody go on when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def ask(self) -> None:
        super().ask()
        self.asked.set()


def test_an_interrupt_of_the_caller_stops_all_before_it_is_raised(work: Work) -> None:
    orders, bills, never = (work.queue(name, NO_RETRY, "good") for name in ("orders", "bills", "never"))
    stop = Told()

    def open_when_stopped() -> tuple[ReceivePass, str]:
        assert stop.asked.wait(30)
        return bills.a_pass(), "run"

    def interrupt(_queue: str, _end: ReceiveResult | Exception) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        receive_many([run_of(orders), QueueRun("bills", open_when_stopped), run_of(never)], parallelism=1, stop=stop, ended=interrupt)

    assert [calls(queue.handler).total() for queue in (orders, bills, never)] == [1, 0, 0]
    assert [len(queue.table.snapshot().claims) for queue in (orders, bills, never)] == [0, 1, 0]


def test_the_caller_is_told_of_every_queue_on_its_own_thread(work: Work) -> None:
    told: dict[str, Any] = {}

    def note(queue: str, end: ReceiveResult | Exception) -> None:
        told[queue] = (type(end), threading.current_thread())

    receive_many([run_of(work.queue("orders")), failing("missing", QueueNotFoundError("no"))], parallelism=2, ended=note)

    here = threading.current_thread()
    assert told == {"orders": (ReceiveResult, here), "missing": (QueueNotFoundError, here)}


def test_no_queues_are_nothing_to_do() -> None:
    assert receive_many([], parallelism=4).to_dict() | {"totals": None} == ReceiveManyResult({}, {}).to_dict() | {"totals": None}


class Meanwhile:
    """While it is packed, another thread packs something, or tries to."""

    def __init__(self, function: Callable[[str], str]) -> None:
        self._function = function

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        other = threading.Thread(target=carry_by_value, args=(self._function, self._function))
        other.start()
        other.join(0.2)
        return getattr, (self._function, "__call__")


def test_a_handler_of_a_dag_file_is_packed_while_another_thread_packs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The register of cloudpickle is the process's: a thread that has done must not unregister what another one needs."""
    module = types.ModuleType("unusual_prefix_1234_orders")
    exec("def land(message):\n    return message\n", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)

    packed = carry_by_value(Meanwhile(module.land))

    del sys.modules[module.__name__]
    assert pickle.loads(packed)("here") == "here"


def engine_never() -> Engine:
    raise AssertionError("an engine was made although there was nothing to deliver")


def test_queues_without_messages_make_no_engine(work: Work) -> None:
    result = receive_many([run_of(work.queue(name), engine=engine_never) for name in ("a", "b")], parallelism=2)

    assert result.totals()["received"] == 0
