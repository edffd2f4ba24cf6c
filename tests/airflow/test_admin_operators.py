"""What people do to queues in DAGs: switch, alter, restart, inspect, move and remove; each in a real run, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, task

from airflow_poison import Message, Msmq4, ServiceBroker
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.base import lookup_ids_of, one_lookup_id
from airflow_poison.operators.manage import QueueAlterOperator, QueueInspectOperator, QueueMoveOperator, QueueRemoveOperator
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import LEASE, ReceivePass
from airflow_poison.passes.send import send
from airflow_poison.store.control import QueueState
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import (
    MessageClaimedError,
    MessageNotFoundError,
    QueueHaltedError,
    QueueNotFoundError,
    SettingError,
)
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

    from .conftest import Ran

CLOCK = SystemClock()
MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
REJECT = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Reject")


def refuse_bad(message: Message) -> None:
    if message.body.startswith(b"bad"):
        raise ValueError(message.body)


def a_queue(store: QueueStore, policy: Policy, *bodies: bytes, conversation: str | None = None) -> QueueTable:
    table = declare(store, "orders", policy, CLOCK)
    columns: dict[str, pa.Array[Any]] = {
        "body": pa.array(bodies, pa.binary()),
        "conversation_id": pa.array([conversation] * len(bodies), pa.string()),
    }
    send(table, [pa.RecordBatch.from_pydict(columns)], key=f"{table.snapshot().version}", clock=CLOCK)
    return table


def receive(store: QueueStore, table: QueueTable, policy: Policy) -> None:
    ReceivePass(table=table, policy=policy, handler=refuse_bad, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run("run")


def ids(table: QueueTable, place: SubQueue) -> list[int]:
    return sorted(number or 0 for file in table.snapshot().files if file.sub_queue == place for number in table.read(file)["lookup_id"].to_pylist())


def test_a_queue_is_disabled_sends_wait_and_enabling_lets_them_in(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    table = a_queue(store, ServiceBroker(), b"first")
    with DAG("off_and_on", schedule=None) as dag:
        off = QueueAlterOperator(task_id="off", queue_name="orders", action="disable", reason="{{ dag.dag_id }} looks at it")
        sent = QueueSendOperator(task_id="send", queue_name="orders", messages=["second", "third"])

        @task
        def look() -> list[list[int]]:
            return [ids(table, SubQueue.MAIN), ids(table, SubQueue.TRANSMISSION)]

        on = QueueAlterOperator(task_id="on", queue_name="orders", action="{{ 'enable' }}")
        off >> sent >> look() >> on
    ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    assert ran.returned["off"] == {"queue": "orders", "before": "enabled", "receiving": 0}
    assert ran.returned["send"] == {"queue": "orders", "sent": 2, "first_lookup_id": 2, "repeated": False, "held": 2, "malformed": 0}
    assert ran.returned["look"] == [[1], [2, 3]]
    assert ran.returned["on"] == {"queue": "orders", "before": "disabled", "reason": "off_and_on looks at it"}
    assert ids(table, SubQueue.MAIN) == [1, 2, 3]


def test_settings_are_altered_and_restarts_forget(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    table = a_queue(store, ServiceBroker(), b"first")
    table.alter(lambda control: control.with_endpoint_counters({"rollbacks": 4}))
    with DAG("alter", schedule=None) as dag:
        altered = QueueAlterOperator(task_id="alter", queue_name="orders", action="alter", settings={"database_name": "{{ dag.dag_id }}"})
        endpoint = QueueAlterOperator(task_id="endpoint", queue_name="orders", action="restart_endpoint")
        altered >> endpoint >> QueueAlterOperator(task_id="server", queue_name="orders", action="restart_server")
    ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    assert ran.returned["alter"] == {"queue": "orders", "changed": {"database_name": ["", "alter"]}}
    assert ran.returned["endpoint"]["counters"] == {"rollbacks": 4}
    assert ran.returned["server"] == {
        "queue": "orders",
        "what": "server",
        "before": "enabled",
        "after": "enabled",
        "counters": {},
        "forgotten": 0,
        "returned": 0,
    }


def test_groups_are_parked(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    table = a_queue(store, Msmq4(receive_error_handling="Move"), b"first")
    with DAG("park", schedule=None) as dag:
        QueueAlterOperator(task_id="alter", queue_name="orders", action="alter", park_group=True)
    ran = run_dag(dag)
    assert ran.returned["alter"] == {"queue": "orders", "changed": {"park_group": [False, True]}}
    assert table.snapshot().control.desk == {"park_group": True}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"action": "explode"}, SettingError),
        ({"action": "alter"}, SettingError),
        ({"action": "enable", "settings": {"rollback_limit": 4}}, SettingError),
        ({"action": "alter", "settings": {"rollback_limit": 0}}, SettingError),
        ({"action": "alter", "park_group": True}, SettingError),
        ({"action": "enable", "park_group": False}, SettingError),
        ({"action": "enable", "queue_name": "other"}, QueueNotFoundError),
    ],
)
def test_what_cannot_be_done_to_a_queue_fails_the_task(
    store: QueueStore, run_dag: Callable[..., Ran], arguments: dict[str, Any], error: type[Exception]
) -> None:
    a_queue(store, ServiceBroker())
    with DAG("wrong", schedule=None) as dag:
        QueueAlterOperator(**{"task_id": "do", "queue_name": "orders", **arguments})
    ran = run_dag(dag)
    assert isinstance(ran.errors["do"], error)


def test_a_restart_while_a_pass_receives_fails_the_task(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    table = a_queue(store, ServiceBroker(), b"first")
    assert table.claim("pass", lease=LEASE, now=CLOCK.now(), max_messages=1) is not None
    with DAG("restart", schedule=None) as dag:
        QueueAlterOperator(task_id="do", queue_name="orders", action="restart_broker")
    assert isinstance(run_dag(dag).errors["do"], MessageClaimedError)


def test_sb_15_the_message_that_disabled_a_queue_is_inspected_its_conversation_removed_and_the_queue_enabled(
    store: QueueStore, run_dag: Callable[..., Ran]
) -> None:
    table = a_queue(store, ServiceBroker(), b"bad one", b"bad two", conversation="d1")
    a_queue(store, ServiceBroker(), b"good", conversation="d2")
    receive(store, table, ServiceBroker())
    assert table.snapshot().control.state is QueueState.DISABLED
    conversation = "{{ ti.xcom_pull('inspect')['messages'][0]['conversation_id'] }}"
    with DAG("recover", schedule=None) as dag:
        seen = QueueInspectOperator(task_id="inspect", queue_name="orders", mode="browse")
        removed = QueueRemoveOperator(task_id="remove", queue_name="orders", conversation_id=conversation)
        seen >> removed >> QueueAlterOperator(task_id="enable", queue_name="orders", action="enable")
    ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    [message] = ran.returned["inspect"]["messages"]
    assert (message["lookup_id"], message["body"], message["abort_count"], message["sub_queue"]) == (1, "bad one", 5, "main")
    assert [message["lookup_id"] for message in ran.returned["remove"]["messages"]] == [1, 2]
    assert (ran.returned["remove"]["removed"], ran.returned["remove"]["more"]) == (2, 0)
    assert ids(table, SubQueue.MAIN) == [3]
    assert table.snapshot().control.state is QueueState.ENABLED


def test_an_inspection_shows_bodies_of_any_kind_and_says_when_it_cut_them(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    a_queue(store, MOVE, b"\xff", b"x" * 70_000)
    with DAG("inspect", schedule=None) as dag:
        for number in (1, 2, 3):
            QueueInspectOperator(task_id=f"look_{number}", queue_name="orders", lookup_id=f"{{{{ {number} }}}}")
    ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    first, second = (ran.returned[f"look_{number}"]["messages"][0] for number in (1, 2))
    assert (first["body"], first["body_encoding"], first["body_cut"]) == ("/w==", "base64", False)
    assert (len(second["body"]), second["body_encoding"], second["body_bytes"], second["body_cut"]) == (65_536, "text", 70_000, True)
    assert ran.returned["look_3"]["messages"] == []


def test_sb_18_a_receiving_inspection_of_a_disabled_queue_fails_the_task_and_says_to_browse(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    a_queue(store, ServiceBroker(), b"first")
    QueueHook().queue("orders").disable()
    with DAG("inspect_disabled", schedule=None) as dag:
        QueueInspectOperator(task_id="look", queue_name="orders")
    error = run_dag(dag).errors["look"]
    assert isinstance(error, QueueHaltedError)
    assert "9617" in str(error)
    assert "browse" in str(error)


def test_poison_is_moved_back_by_ids_from_an_earlier_task_or_all_of_it(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    table = a_queue(store, MOVE, b"bad 1", b"bad 2", b"bad 3", b"bad 4")
    receive(store, table, MOVE)
    with DAG("put_back", schedule=None) as dag:

        @task
        def choose() -> list[int]:
            return [2, 3]

        chosen = choose()
        some = QueueMoveOperator(task_id="some", queue_name="orders", lookup_ids=chosen)  # type: ignore[arg-type]  # XComArg
        away = QueueMoveOperator(task_id="away", queue_name="orders", lookup_ids="{{ ti.xcom_pull('choose')[0] }}", target="poison")
        some >> away >> QueueMoveOperator(task_id="all", queue_name="orders")
    ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    assert ran.returned["some"] == {"queue": "orders", "moved": 2, "to": {"main": 2}}
    assert ran.returned["away"] == {"queue": "orders", "moved": 1, "to": {"poison": 1}}
    assert ran.returned["all"] == {"queue": "orders", "moved": 3, "to": {"main": 3}}
    assert ids(table, SubQueue.MAIN) == [1, 2, 3, 4]


def test_dead_letters_are_sent_back_to_where_they_came_from(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    table = a_queue(store, REJECT, b"bad 1", b"bad 2")
    receive(store, table, REJECT)
    assert ids(table, SubQueue.MAIN) == []
    with DAG("redrive", schedule=None) as dag:
        QueueMoveOperator(task_id="move", queue_name="orders.dead-letter", lookup_ids=[1, 2], target="queue")
    ran = run_dag(dag)
    assert ran.returned["move"] == {"queue": "orders.dead-letter", "moved": 2, "to": {"orders": 2}}, ran.errors
    assert ids(table, SubQueue.MAIN) == [3, 4]
    assert store.open("orders.dead-letter").snapshot().files == ()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"lookup_ids": [99]}, MessageNotFoundError),
        ({"lookup_ids": "seven"}, SettingError),
        ({"lookup_ids": [1], "target": "retry"}, SettingError),
        ({"lookup_ids": [1], "target": "main", "to_queue": "other"}, SettingError),
        ({"lookup_ids": [1], "target": "queue", "to_queue": "other"}, QueueNotFoundError),
        ({"target": "poison"}, SettingError),
    ],
)
def test_moves_that_cannot_be_made_fail_the_task_and_move_nothing(
    store: QueueStore, run_dag: Callable[..., Ran], arguments: dict[str, Any], error: type[Exception]
) -> None:
    table = a_queue(store, MOVE, b"first")
    with DAG("wrong_moves", schedule=None) as dag:
        QueueMoveOperator(task_id="move", queue_name="orders", **arguments)
    assert isinstance(run_dag(dag).errors["move"], error)
    assert ids(table, SubQueue.MAIN) == [1]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [({"lookup_ids": [1, 99]}, MessageNotFoundError), ({}, SettingError), ({"lookup_ids": [1], "conversation_id": "d"}, SettingError)],
)
def test_removals_that_cannot_be_made_fail_the_task_and_remove_nothing(
    store: QueueStore, run_dag: Callable[..., Ran], arguments: dict[str, Any], error: type[Exception]
) -> None:
    table = a_queue(store, MOVE, b"first")
    with DAG("wrong_removals", schedule=None) as dag:
        QueueRemoveOperator(task_id="remove", queue_name="orders", **arguments)
    assert isinstance(run_dag(dag).errors["remove"], error)
    assert ids(table, SubQueue.MAIN) == [1]


def test_the_hook_does_the_same_by_hand(store: QueueStore) -> None:
    table = a_queue(store, MOVE, b"first", b"second", b"third", conversation="d1")
    hook = QueueHook()
    declare(store, "other", MOVE, CLOCK)
    assert hook.queue("orders").inspect(conversation_id="d1", every=True).more == 0
    assert hook.queue("orders").move([1], "poison") == 1
    assert dict(hook.queue("orders").send_to([2], "other").to) == {"other": 1}
    assert hook.queue("orders").restart("broker").forgotten == 0
    assert dict(hook.queue("orders").alter({"receive_retry_count": 4}).changed) == {"receive_retry_count": (0, 4)}
    assert [message.lookup_id for message in hook.queue("orders").remove_conversation("d1").messages] == [1, 3]
    assert table.snapshot().files == ()
    with pytest.raises(SettingError, match="endpoint, server, broker"):
        hook.queue("orders").restart("everything")


@pytest.mark.parametrize(
    ("given", "numbers"), [(7, [7]), ([7, 8], [7, 8]), ("7", [7]), ("[7, 8]", [7, 8]), (" 7, 8 ", [7, 8]), ("[]", []), ((7,), [7])]
)
def test_lookup_ids_are_numbers_or_text_of_them(given: Any, numbers: list[int]) -> None:
    assert lookup_ids_of(given) == numbers


@pytest.mark.parametrize("given", ["seven", "7.5", [7.5], ["7"], "[true]", True, None, {"a": 1}, "[" * 100_000])
def test_anything_else_is_no_lookup_id(given: Any) -> None:
    with pytest.raises(SettingError, match="lookup_ids"):
        lookup_ids_of(given)
    with pytest.raises(SettingError):
        one_lookup_id([1, 2])  # type: ignore[arg-type]  # on purpose
