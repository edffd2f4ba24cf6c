"""Messages that tasks send to a real topic: chosen by lookup ids or by a selection, retried, cleared, failed in between."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_poison import Kafka, Message, Msmq4, Selection
from airflow_poison.desk import exports
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.desk import QueueSendToKafkaOperator
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import InputError, MessageNotFoundError, SettingError, SourceError
from airflow_poison.values.fault_points import install
from airflow_poison.values.schema import SubQueue
from tests.given.waiting import until
from tools.servers.kafka import Broker, running

from .conftest import define_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

    from .conftest import Ran

pytestmark = pytest.mark.long

CLOCK = SystemClock()
FIRST, SECOND = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
_numbers = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("kafka")) as found:
        yield found


@pytest.fixture
def letters(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> str:
    """A topic of the test's own, behind the connection ``letters``."""
    name, admin = f"letters-{next(_numbers)}", AdminClient(dict(broker.settings))
    admin.create_topics([NewTopic(name, 1)])[name].result()
    until(lambda: name in admin.list_topics(timeout=5).topics)
    define_connection(monkeypatch, "letters", dict(broker.settings), conn_type="kafka")
    return name


def fail(message: Message) -> None:
    raise (KeyError if message.lookup_id % 2 else ValueError)(message.text)


@pytest.fixture
def table(store: QueueStore) -> QueueTable:
    """Five poison messages: 1, 3 and 5 with a KeyError, and one that waits."""
    made = declare(store, "orders", MOVE, CLOCK)
    send(made, messages_to_batches(list("abcde")), key="given", clock=CLOCK)
    ReceivePass(table=made, policy=MOVE, handler=fail, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run("given")
    send(made, messages_to_batches(["f"]), key="more", clock=CLOCK)
    return made


def ids(table: QueueTable, place: SubQueue = SubQueue.POISON) -> list[int]:
    return sorted(row["lookup_id"] for file in table.snapshot().files if file.sub_queue == place for row in table.read(file).to_pylist())


def there(broker: Broker, topic: str) -> list[str]:
    """Return the values of a topic, as a consumer of committed transactions sees them."""
    consumer = Consumer({**broker.settings, "group.id": "looker", "isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = list[str]()
    while (record := consumer.poll(10)) is not None and record.error() is None:
        found.append((record.value() or b"").decode())
    consumer.close()
    return sorted(found)


def sending(topic: str, **arguments: Any) -> DAG:
    with DAG("letters", schedule=None) as dag:
        QueueSendToKafkaOperator(task_id="do", queue_name="orders", kafka=Kafka(topic, "letters"), **arguments)
    return dag


def fail_at(nth: int, point: str) -> None:
    """Let the process fail when it reaches a point for the nth time."""
    reached = count(1)

    def act(name: str) -> None:
        if name == point and next(reached) == nth:
            raise ConnectionError("the worker is gone")

    install(act)


@pytest.mark.long
@pytest.mark.parametrize(
    ("selection", "sent"),
    [
        (Selection(error_type="KeyError"), ["a", "c", "e"]),
        ({"error_type": "ValueError"}, ["b", "d"]),
        ('{"lookup_ids": "1,6", "sub_queue": null}', ["a", "f"]),
        ({}, list("abcde")),
        ({"error_type": "OSError"}, []),
    ],
)
def test_a_selection_leaves_for_the_topic(  # noqa: PLR0917
    table: QueueTable, broker: Broker, letters: str, run_dag: Callable[..., Ran], selection: Any, sent: list[str]
) -> None:
    expected = {"queue": "orders", "topic": letters, "sent": len(sent), "finished": 0, "left": 0, "returned": 0}
    assert run_dag(sending(letters, selection=selection, reason="by hand")).returned["do"] == expected
    assert there(broker, letters) == sent
    assert len(ids(table)) + len(ids(table, SubQueue.MAIN)) == 6 - len(sent)
    events = [event for event in table.events() if event.details.get("place") == f"kafka:{letters}"]
    assert len(events) == len(sent)
    assert {(event.details["who"].startswith("dag:letters/"), event.details["why"]) for event in events} <= {(True, "by hand")}


def test_the_topic_is_in_the_lineage(table: QueueTable, broker: Broker, letters: str, run_dag: Callable[..., Ran]) -> None:
    found: list[Any] = []
    dag = sending(letters, lookup_ids=[1])
    dag.tasks[0].on_success_callback = [lambda context: found.append(context["task"])]
    assert run_dag(dag).state == "success"
    assert (list(found[0].lineage.inputs), list(found[0].lineage.outputs)) == (
        ["poison://poison_default/orders"],
        [f"kafka://{broker.settings['bootstrap.servers']}/{letters}"],
    )


def test_a_cleared_task_sends_what_meets_its_selection_then_and_nothing_twice(
    store: QueueStore, table: QueueTable, broker: Broker, letters: str, run_dag: Callable[..., Ran]
) -> None:
    dag = sending(letters, selection={"error_type": "ValueError"})
    assert [run_dag(dag, FIRST).returned["do"]["sent"] for _ in range(2)] == [2, 0]
    ReceivePass(table=table, policy=MOVE, handler=fail, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run("again")
    assert run_dag(dag, FIRST).returned["do"]["sent"] == 1
    assert there(broker, letters) == ["b", "d", "f"]


def test_lookup_ids_that_an_earlier_try_has_sent_are_no_error_and_those_of_another_run_are(
    table: QueueTable, broker: Broker, letters: str, run_dag: Callable[..., Ran]
) -> None:
    dag = sending(letters, lookup_ids="[1, 2]")
    assert [run_dag(dag, FIRST).returned["do"]["sent"] for _ in range(2)] == [2, 0]
    assert isinstance(run_dag(dag, SECOND).errors["do"], MessageNotFoundError)
    assert (there(broker, letters), ids(table)) == (["a", "b"], [3, 4, 5])


@pytest.mark.parametrize("arguments", [{"lookup_ids": [1, 2, 3, 4, 5]}, {"selection": {}}])
@pytest.mark.parametrize(
    "point",
    ["pass.send_to_kafka.before_sending", "pass.to_kafka.before_commit", "pass.to_kafka.after_commit", "pass.to_kafka.before_removal"],
)
def test_a_task_that_fails_anywhere_and_is_retried_sends_each_once(  # noqa: PLR0917
    table: QueueTable,
    broker: Broker,
    letters: str,
    run_dag: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, Any],
    point: str,
) -> None:
    monkeypatch.setattr(exports, "CHUNK", 2)
    dag = sending(letters, **arguments)
    fail_at(2 if "selection" in arguments else 1, point)
    try:
        assert run_dag(dag, FIRST).state == "failed"
    finally:
        install(None)
    assert run_dag(dag, FIRST).state == "success"
    assert there(broker, letters) == list("abcde")
    assert (ids(table), ids(table, SubQueue.MAIN), table.snapshot().outbox) == ([], [6], ())


def test_neither_sends_what_earlier_calls_have_left(table: QueueTable, broker: Broker, letters: str, run_dag: Callable[..., Ran]) -> None:
    fail_at(1, "pass.send_to_kafka.before_sending")
    try:
        with pytest.raises(ConnectionError):
            QueueHook().queue("orders").send_to_kafka([2], Kafka(letters, "letters"))
    finally:
        install(None)
    assert run_dag(sending(letters)).returned["do"]["sent"] == 1
    assert (there(broker, letters), ids(table)) == (["b"], [1, 3, 4, 5])


def test_the_hook_has_the_same_verb(table: QueueTable, broker: Broker, letters: str) -> None:
    hook, topic = QueueHook(), Kafka(letters, "letters")
    assert hook.queue("orders").send_to_kafka([1], topic, key="group_id", reason="late").to_dict() == {
        "queue": "orders",
        "topic": letters,
        "sent": 1,
        "finished": 0,
        "left": 0,
        "returned": 0,
    }
    assert hook.queue("orders").send_to_kafka([], topic, selection={"error_type": "KeyError"}).sent == 2
    assert there(broker, letters) == ["a", "c", "e"]
    assert {event.details["why"] for event in table.events() if event.lookup_id == 1 and "place" in event.details and "why" in event.details} == {
        "late"
    }
    with pytest.raises(InputError, match="expected one of them"):
        hook.queue("orders").send_to_kafka([2], topic, selection={})
    with pytest.raises(SourceError, match="no connection 'nowhere'"):
        hook.queue("orders").send_to_kafka([2], Kafka(letters, "nowhere"))
    assert ids(table) == [2, 4]


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"kafka": "letters"}, SettingError, "kafka"),
        ({"kafka": Kafka("letters"), "selection": {}, "lookup_ids": [1]}, InputError, "give one of selection and lookup_ids"),
    ],
)
def test_what_is_given_wrongly_is_refused_when_the_dag_is_read(arguments: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        QueueSendToKafkaOperator(task_id="do", queue_name="orders", **arguments)


def test_a_selection_that_a_template_leaves_empty_is_not_all_poison(table: QueueTable, letters: str, run_dag: Callable[..., Ran]) -> None:
    error = run_dag(sending(letters, selection="{{ '' }}")).errors["do"]
    assert isinstance(error, SettingError)
    assert ids(table) == [1, 2, 3, 4, 5]
