"""Tasks that run again: retried, cleared, backfilled, started twice, killed. Each row of docs/how-to/rerun-tasks.md that no other test holds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG

from airflow_poison import Message, Msmq4, ServiceBroker
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.manage import QueueAlertOperator, QueueAlterOperator, QueueMoveOperator, QueueRemoveOperator, QueueReturnOperator
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import MessageNotFoundError
from airflow_poison.values.schema import SubQueue

from .task_process import Writes, called, start

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.forked import Started

    from .conftest import Ran

CLOCK = SystemClock()
FIRST, SECOND = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
CYCLE = Msmq4(receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=timedelta(0), receive_error_handling="Move")
MESSAGES = 60


def never(message: Message) -> None:
    raise ValueError(message.text)


def accept(message: Message) -> None:
    del message


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of a few messages run in this process."""
    monkeypatch.setattr(QueueHook, "engine", lambda _self, *_: LocalEngine())


def a_queue(store: QueueStore, policy: Policy, *bodies: bytes) -> QueueTable:
    table = declare(store, "orders", policy, CLOCK)
    send(table, messages_to_batches(bodies), key="given", clock=CLOCK)
    return table


def poisoned(store: QueueStore, *bodies: bytes) -> QueueTable:
    table = a_queue(store, MOVE, *bodies)
    ReceivePass(table=table, policy=MOVE, handler=never, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run("given")
    return table


def ids(table: QueueTable, place: SubQueue = SubQueue.MAIN) -> list[int]:
    return sorted(number or 0 for file in table.snapshot().files if file.sub_queue == place for number in table.read(file)["lookup_id"].to_pylist())


def one_task(operator: type[Any], dag_id: str = "again", **arguments: Any) -> DAG:
    with DAG(dag_id, schedule=None) as dag:
        operator(**{"task_id": "do", "queue_name": "orders", **arguments})
    return dag


# Receive ------------------------------------------------------------------------------------------------------------------


def test_a_worker_that_vanished_is_followed_by_a_retry_that_goes_on_where_it_stopped(store: QueueStore, tmp_path: Path) -> None:
    bodies = [b"good"] * MESSAGES
    bodies[20] = b"worker vanishes"
    table, calls = a_queue(store, MOVE, *bodies), tmp_path / "calls"
    assert _ended(start(calls, "run"))[0] == -9
    assert (sum(called(calls).values()), len(table.snapshot().claims)) == (21, 1)

    status, said = _ended(start(calls, "run"))

    assert status == 0, said
    expected = dict.fromkeys(range(1, MESSAGES + 1), 1)
    assert called(calls, "done") == {number: 1 for number in expected if number != 21}
    assert called(calls) == expected
    assert "settled 59 crashes 1" in said
    assert (ids(table), ids(table, SubQueue.POISON), table.snapshot().claims) == ([], [21], ())


@pytest.mark.long
def test_two_schedulers_that_start_the_same_task_deliver_each_message_once(store: QueueStore, tmp_path: Path) -> None:
    table, calls = a_queue(store, MOVE, b"meet", *[b"good"] * 300), tmp_path / "calls"

    ends = [_ended(driver) for driver in [start(calls, "run"), start(calls, "run")]]

    assert called(calls) == called(calls, "done") == dict.fromkeys(range(1, 302), 1)
    assert (ids(table), table.snapshot().claims) == ([], ())
    late, early = sorted(ends)
    assert (late[0], early[0]) == (0, 1), ends
    assert "ClaimLostError" in early[1]
    assert "received 301 settled 301 crashes 0" in late[1]


def test_two_runs_at_the_same_time_share_the_queue_and_deliver_each_message_once(store: QueueStore, tmp_path: Path) -> None:
    table, calls = a_queue(store, MOVE, *[b"good"] * 100), tmp_path / "calls"

    ends = [_ended(driver) for driver in [start(calls, "one"), start(calls, "two")]]

    assert [status for status, _ in ends] == [0, 0], ends
    assert called(calls) == called(calls, "done") == dict.fromkeys(range(1, 101), 1)
    assert (ids(table), table.snapshot().claims) == ([], ())


@pytest.mark.long
def test_a_receive_that_had_finished_and_is_cleared_receives_what_is_there_now(
    store: QueueStore, run_dag: Callable[..., Ran], no_spark: None
) -> None:
    table = a_queue(store, MOVE, b"a", b"b")
    dag = one_task(QueueReceiveOperator, handler=accept)
    assert run_dag(dag, FIRST).returned["do"]["settled"] == 2
    assert run_dag(dag, FIRST).returned["do"]["received"] == 0
    send(table, messages_to_batches([b"c"]), key="later", clock=CLOCK)
    assert run_dag(dag, FIRST).returned["do"]["settled"] == 1


def test_a_task_that_ran_out_of_time_is_finished_by_its_retry_and_the_message_in_the_handler_is_charged(
    store: QueueStore, run_dag: Callable[..., Ran], no_spark: None, tmp_path: Path
) -> None:
    table, calls = a_queue(store, CYCLE, *[b"good"] * 200), tmp_path / "calls"

    slow = run_dag(one_task(QueueReceiveOperator, handler=Writes(str(calls)), execution_timeout=timedelta(seconds=2)), FIRST)
    assert slow.state == "failed"
    delivered = len(called(calls))
    assert len(table.snapshot().claims) == 1

    ran = run_dag(one_task(QueueReceiveOperator, handler=Writes(str(calls))), FIRST)

    assert ran.state == "success", ran.errors
    assert delivered < 200
    done = ran.returned["do"]
    assert (done["received"], done["settled"] + done["parked"]) == (200, 200)
    assert done["parked"] == done["crashes"] <= 1
    assert set(called(calls).values()) <= {1, 2}
    assert sum(called(calls).values()) <= 201


# Send ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sent"), [({}, 2), ({"resend": True}, 3), ({"send_key": "orders of January"}, 1)], ids=["default", "resend", "send_key"]
)
def test_a_backfill_sends_for_each_of_its_runs_and_a_cleared_run_sends_nothing_twice(
    store: QueueStore, run_dag: Callable[..., Ran], settings: dict[str, Any], sent: int
) -> None:
    dag = one_task(QueueSendOperator, messages=["a"], policy=MOVE, **settings)
    for when in (FIRST, SECOND, FIRST):
        assert run_dag(dag, when).state == "success"
    assert ids(store.open("orders")) == list(range(1, sent + 1))


def test_a_whole_run_that_is_cleared_sends_nothing_and_delivers_nothing_again(store: QueueStore, run_dag: Callable[..., Ran], no_spark: None) -> None:
    with DAG("whole", schedule=None) as dag:
        sent = QueueSendOperator(task_id="send", queue_name="orders", messages=["a", "b"], policy=MOVE)
        sent >> QueueReceiveOperator(task_id="receive", queue_name="orders", handler=accept)
    first, second = run_dag(dag, FIRST), run_dag(dag, FIRST)
    assert (first.returned["send"]["repeated"], first.returned["receive"]["settled"]) == (False, 2)
    assert (second.returned["send"]["repeated"], second.returned["receive"]["received"]) == (True, 0)


# What people do to queues -----------------------------------------------------------------------------------------------


def test_a_move_that_is_run_again_finds_its_messages_moved_and_moves_none(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    table = poisoned(store, b"a", b"b", b"c")
    dag = one_task(QueueMoveOperator, lookup_ids=[1, 2])
    assert run_dag(dag, FIRST).returned["do"] == {"queue": "orders", "moved": 2, "to": {"main": 2}}
    again = run_dag(dag, FIRST)
    assert again.state == "success", again.errors
    assert again.returned["do"] == {"queue": "orders", "moved": 0, "to": {"main": 0}}
    assert (ids(table), ids(table, SubQueue.POISON)) == ([1, 2], [3])
    assert {row["move_count"] for file in table.snapshot().files if file.sub_queue == SubQueue.MAIN for row in table.read(file).to_pylist()} == {2}


def test_a_move_of_all_poison_that_is_run_again_moves_what_is_there_now(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    poisoned(store, b"a", b"b")
    dag = one_task(QueueMoveOperator)
    assert [run_dag(dag, FIRST).returned["do"]["moved"] for _ in range(2)] == [2, 0]


def test_messages_that_were_sent_to_another_queue_are_not_sent_twice(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    table = poisoned(store, b"a", b"b")
    other = declare(store, "other", MOVE, CLOCK)
    dag = one_task(QueueMoveOperator, lookup_ids=[1, 2], target="queue", to_queue="other")
    assert [run_dag(dag, FIRST).returned["do"]["moved"] for _ in range(2)] == [2, 0]
    assert (ids(other), table.snapshot().files) == ([1, 2], ())


def test_a_removal_that_is_run_again_finds_its_messages_removed(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    table = a_queue(store, MOVE, b"a", b"b")
    dag = one_task(QueueRemoveOperator, lookup_ids=[1])
    assert [run_dag(dag, FIRST).returned["do"]["removed"] for _ in range(2)] == [1, 0]
    assert ids(table) == [2]


@pytest.mark.parametrize("operator", [QueueMoveOperator, QueueRemoveOperator])
def test_messages_that_another_run_has_taken_fail_the_task(store: QueueStore, run_dag: Callable[..., Ran], operator: type[Any]) -> None:
    poisoned(store, b"a", b"b")
    dag = one_task(operator, lookup_ids=[1])
    assert run_dag(dag, FIRST).state == "success"
    assert isinstance(run_dag(dag, SECOND).errors["do"], MessageNotFoundError)


def test_a_rerun_with_a_message_that_was_never_there_fails_and_changes_nothing(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    table = poisoned(store, b"a", b"b")
    assert run_dag(one_task(QueueMoveOperator, lookup_ids=[1]), FIRST).state == "success"
    error = run_dag(one_task(QueueMoveOperator, lookup_ids=[1, 2, 99]), FIRST).errors["do"]
    assert isinstance(error, MessageNotFoundError)
    assert ids(table, SubQueue.POISON) == [2]


@pytest.mark.parametrize(
    ("arguments", "first", "second"),
    [
        ({"action": "disable"}, {"before": "enabled"}, {"before": "disabled"}),
        ({"action": "enable"}, {"before": "enabled"}, {"before": "enabled"}),
        ({"action": "alter", "settings": {"database_name": "shop"}}, {"changed": {"database_name": ["", "shop"]}}, {"changed": {}}),
        ({"action": "restart_endpoint"}, {"before": "enabled"}, {"before": "enabled"}),
        ({"action": "restart_broker"}, {"forgotten": 0}, {"forgotten": 0}),
    ],
    ids=lambda value: value.get("action", "") if isinstance(value, dict) else None,
)
def test_what_is_done_to_a_queue_twice_is_done_once(
    store: QueueStore, run_dag: Callable[..., Ran], arguments: dict[str, Any], first: dict[str, Any], second: dict[str, Any]
) -> None:
    table = a_queue(store, ServiceBroker(), b"a")
    dag = one_task(QueueAlterOperator, **arguments)
    results = []
    for _ in range(2):
        results.append(run_dag(dag, FIRST).returned["do"])
        control = table.snapshot().control
    assert first.items() <= results[0].items()
    assert second.items() <= results[1].items()
    assert table.snapshot().control == control
    assert ids(table) == [1]


# Return, alert ------------------------------------------------------------------------------------------------------------


def test_a_return_that_is_run_again_moves_and_counts_nothing_twice(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    table = a_queue(store, CYCLE, b"a", b"b")
    ReceivePass(table=table, policy=CYCLE, handler=never, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run("given")
    dag = one_task(QueueReturnOperator)
    assert [run_dag(dag, FIRST).returned["do"]["returned"] for _ in range(2)] == [2, 0]
    assert {row["move_count"] for file in table.snapshot().files for row in table.read(file).to_pylist()} == {2}


def test_an_alert_that_was_given_is_not_given_again(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    poisoned(store, b"a", b"b")
    told: list[Any] = []
    dag = one_task(QueueAlertOperator, on_poison=lambda context: told.append(context["poison_alert"]["key"]))
    assert [len(run_dag(dag, when).returned["do"]) for when in (FIRST, FIRST, SECOND)] == [1, 0, 0]
    assert len(told) == 1


def _ended(task: Started) -> tuple[int, str]:
    ended = task.ended(250.0)
    return ended.code, ended.printed + ended.errors
