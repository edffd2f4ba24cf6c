"""One task over several queues in a real Airflow: templated, mapped, each with its own rules; what fails fails last."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException

from airflow_poison import ActivationSpecification, Message, Msmq4, PoisonSubQueue, ServiceBroker
from airflow_poison.hooks.connection import cores_of
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.receive import QueueReceiveOperator, QueueToReceive
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.sensors import QueueDisabledSensor
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import QueuesFailedError, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from airflow_poison.operators.receive import Entry
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore

    from .conftest import Ran

CLOCK = SystemClock()
MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
FAULT = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Fault")


def refuse_bad(message: Message) -> None:
    if message.text == "bad":
        raise ValueError(message.text)


def refuse_all(message: Message) -> None:
    raise RuntimeError("no plane")


@pytest.fixture
def sent(store: QueueStore) -> Callable[..., None]:
    def fill(name: str, policy: Policy, *bodies: str) -> None:
        table = declare(store, name, policy, CLOCK)
        if bodies:
            send(table, messages_to_batches(bodies), key="sent", clock=CLOCK)

    return fill


@pytest.fixture
def run_task(run_dag: Callable[..., Ran], request: pytest.FixtureRequest) -> Callable[..., Ran]:
    """Run one task over several queues."""

    def run(**parameters: Any) -> Ran:
        with DAG(f"many_{abs(hash(request.node.name))}", schedule=None) as dag:
            QueueReceiveOperator(task_id="receive", **parameters)
        return run_dag(dag)

    return run


@pytest.mark.long
def test_each_queue_has_its_rules_its_handler_and_its_numbers(sent: Callable[..., None], run_task: Callable[..., Ran], spark: SparkSession) -> None:
    for name in ("orders", "bills", "notes"):
        sent(name, MOVE, "good", "bad")

    ran = run_task(
        queues=[
            "orders",
            QueueToReceive(queue_name="bills", handler=refuse_all),
            {"queue_name": "no{{ 'tes' }}", "policy": {**MOVE.to_dict(), "receive_error_handling": "Drop"}},
        ],
        handler=refuse_bad,
        policy=MOVE,
    )

    assert ran.state == "success", ran.errors
    numbers = ran.returned["receive"]
    assert list(numbers["queues"]) == ["orders", "bills", "notes"]
    ends = {name: (one["settled"], one["poisoned"], one["dropped"]) for name, one in numbers["queues"].items()}
    assert ends == {"orders": (1, 1, 0), "bills": (0, 2, 0), "notes": (1, 0, 1)}
    assert (numbers["totals"]["received"], numbers["totals"]["settled"], numbers["halted"], numbers["errors"]) == (6, 2, [], {})


@pytest.mark.long
def test_a_halted_queue_fails_the_task_when_all_have_ended_and_every_halt_says_the_next_step(
    sent: Callable[..., None], run_task: Callable[..., Ran], spark: SparkSession, store: QueueStore
) -> None:
    alerts: list[dict[str, Any]] = []
    broker, endpoint = ServiceBroker(), ActivationSpecification(max_server_sessions=1)
    policies: dict[str, Policy] = {"broker": broker, "endpoint": endpoint, "listener": FAULT, "moves": MOVE}
    for name, policy in policies.items():
        sent(name, policy, "bad", "good")
    queues = [QueueToReceive(queue_name=name, policy=policy) for name, policy in policies.items()]

    def note(context: Any) -> None:
        alerts.append(context["poison_alert"])

    ran = run_task(queues=queues, handler=refuse_bad, parallelism=2, on_queue_disabled=note, on_poison=note)

    error = ran.errors["receive"]
    assert isinstance(error, AirflowFailException)
    assert str(error).startswith("3 of 4 queues halted; what the others did is committed:\n")
    lines = {line.partition(": ")[0]: line for line in str(error).splitlines()[1:]}
    assert set(lines) == {"broker", "endpoint", "listener"}
    assert "halted it (disabled): ValueError: bad. 5 receives in a row were rolled back" in lines["broker"]
    assert "halted it (stopped): ValueError: bad. CWWMQ0007W: " in lines["endpoint"]
    assert "halted it (faulted): ValueError: bad." in lines["listener"]
    assert all("1 was not reached" in line and f"QueueHook().queue('{name}').enable()" in line for name, line in lines.items())
    assert ran.returned["receive"]["queues"]["moves"]["poisoned"] == 1
    assert sorted((alert["queue"], alert["event"]) for alert in alerts) == [
        ("broker", "QUEUE_DISABLED"),
        ("endpoint", "STOPPED"),
        ("listener", "FAULTED"),
        ("moves", "MOVED_POISON"),
    ]
    assert all(alert["details"]["system"] for alert in alerts if alert["kind"] == "queue_disabled")
    send(store.open("moves"), messages_to_batches(["good"]), key="later", clock=CLOCK)

    again = run_task(queues=queues, handler=refuse_bad, on_queue_disabled=note)

    assert "broker: Error 9617: Queue 'broker' is disabled: message 1" in str(again.errors["receive"])
    assert again.returned["receive"]["halted"] == ["broker", "endpoint", "listener"]
    assert again.returned["receive"]["queues"]["moves"]["settled"] == 1
    assert len(alerts) == 4


@pytest.mark.long
def test_a_missing_queue_and_a_failing_notifier_are_raised_together_when_all_have_ended(
    sent: Callable[..., None], run_task: Callable[..., Ran], spark: SparkSession, store: QueueStore
) -> None:
    sent("orders", MOVE, "bad")
    sent("bills", FAULT, "bad")
    sent("notes", MOVE, "good")

    def broken(context: Any) -> None:
        raise ConnectionError("no network")

    ran = run_task(queues=["missing", "orders", "bills", "notes"], handler=refuse_bad, on_poison=broken)

    error = ran.errors["receive"]
    assert isinstance(error, QueuesFailedError)
    lines = str(error).splitlines()
    assert lines[0] == "2 of 4 queues failed; what the others did is committed:"
    assert lines[1].startswith("missing: QueueNotFoundError: There is no queue 'missing'")
    assert lines[2].startswith("orders: AlertError: ")
    assert "no network" in lines[2]
    assert lines[3] == "1 of 4 queues halted:"
    assert lines[4].startswith("bills: Message 1 of queue 'bills' halted it (faulted)")
    assert ran.returned["receive"]["queues"]["notes"]["settled"] == 1
    assert {file.sub_queue for file in store.open("orders").snapshot().files} == {"poison"}


def test_queues_without_messages_start_no_spark(sent: Callable[..., None], run_task: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    sent("orders", MOVE)
    sent("bills", MOVE)
    monkeypatch.setattr(QueueHook, "spark", lambda _self: (_ for _ in ()).throw(AssertionError("Spark was started")))

    ran = run_task(queues=["orders", "bills"], handler=refuse_bad)

    assert ran.state == "success", ran.errors
    assert ran.returned["receive"]["totals"]["received"] == 0


@pytest.mark.long
def test_the_list_may_come_from_an_earlier_task_or_be_mapped(sent: Callable[..., None], run_dag: Callable[..., Ran], spark: SparkSession) -> None:
    for name in ("orders", "bills"):
        sent(name, MOVE, "good")
    with DAG("lists", schedule=None) as dag:

        @task
        def names() -> list[Any]:
            return ["orders", {"queue_name": "bills", "handler": "json:loads", "policy": MOVE.to_dict()}]

        QueueReceiveOperator(task_id="listed", queues=names(), handler=refuse_bad)  # type: ignore[arg-type]  # a list, when it runs
        QueueReceiveOperator.partial(task_id="mapped", handler=refuse_bad, parallelism=1).expand(queues=[["orders"], ["bills"]])

    ran = run_dag(dag)

    assert ran.state == "success", ran.errors
    assert set(ran.returned["listed"]["queues"]) == {"orders", "bills"}


@pytest.mark.long
def test_running_the_task_again_finishes_the_claims_of_its_own_run(
    sent: Callable[..., None], run_dag: Callable[..., Ran], spark: SparkSession, store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent("orders", MOVE, "good")
    sent("bills", MOVE, "good")
    when = datetime(2026, 1, 1, tzinfo=UTC)
    with DAG("again", schedule=None) as dag:
        QueueReceiveOperator(task_id="receive", queues=["orders", "bills"], handler=refuse_bad)

    class Broken(LocalEngine):
        def run(self, table: Any, claim: Any, job: Any, *, keep_alive: Any) -> None:
            raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(QueueHook, "engine", lambda _self, *_: Broken())
        assert "no space left" in str(run_dag(dag, when).errors["receive"])
    assert [len(store.open(name).snapshot().claims) for name in ("orders", "bills")] == [1, 1]

    ran = run_dag(dag, when)

    assert [one["settled"] for one in ran.returned["receive"]["queues"].values()] == [1, 1]
    assert [len(store.open(name).snapshot().claims) for name in ("orders", "bills")] == [0, 0]


def test_a_kill_stops_every_queue(store: QueueStore, sent: Callable[..., None], run_dag: Callable[..., Ran], spark: SparkSession) -> None:
    sent("orders", MOVE, "good")
    sent("bills", MOVE, "good")
    with DAG("killed", schedule=None) as dag:
        receive = QueueReceiveOperator(task_id="receive", queues=["orders", "bills"], handler=refuse_bad)
    receive.on_kill()

    error = str(run_dag(dag).errors["receive"])

    assert "orders: ReceiveStoppedError" in error
    assert "bills: ReceiveStoppedError" in error
    assert [sum(file.rows for file in store.open(name).snapshot().files) for name in ("orders", "bills")] == [1, 1]


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"queue_name": "orders", "queues": ["bills"]}, "queues="),
        ({}, "either queue_name or queues"),
        ({"queue_name": "orders", "handler": None}, "handler=None"),
        ({"queues": ["orders"], "handler": None}, r"queues\['orders'\].handler=None"),
        ({"queues": ["orders", {"queue_name": "orders"}]}, "every queue once; this one is named twice"),
        ({"queues": [{"queue": "orders"}]}, "a dict with queue_name"),
        ({"queues": ["orders"], "parallelism": 0}, "parallelism=0"),
        ({"queues": [{"queue_name": "orders", "policy": "Msmq4"}]}, r"queues\['orders'\].policy='Msmq4'"),
        ({"queues": [{"queue_name": "orders", "policy": {"system": "Msmq5"}}]}, "system='Msmq5'"),
    ],
)
def test_a_mistake_is_told_when_the_dag_is_parsed(parameters: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        QueueReceiveOperator(task_id="receive", **{"handler": "json:loads", **parameters})


def test_a_template_that_is_no_list_is_refused(run_task: Callable[..., Ran], store: QueueStore) -> None:
    error = run_task(queues="{{ ['orders'] }}", handler=refuse_bad).errors["receive"]

    assert "a list of queue names" in str(error)


def test_names_that_are_the_same_when_rendered_are_refused(run_task: Callable[..., Ran], store: QueueStore) -> None:
    error = run_task(queues=["orders", "{{ 'orders' }}"], handler=refuse_bad).errors["receive"]

    assert "named twice" in str(error)


def test_the_serialized_task_is_the_same_at_every_parse() -> None:
    """An address of a function would make a new version of the DAG each time."""
    from airflow.serialization.helpers import serialize_template_field

    def parse() -> object:
        entries: list[Entry] = [QueueToReceive(queue_name="orders", handler=lambda message: message.body, policy=MOVE), "bills"]
        return serialize_template_field(QueueReceiveOperator(task_id="receive", queues=entries, handler=refuse_bad).queues, "queues")

    assert str(parse()) == str(parse())
    assert "0x" not in str(parse())


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[3]", 3), ("local[3,2]", 3), ("spark://host:7077", None), ("local-cluster[2,1,1024]", None)]
)
def test_the_master_says_how_many_cores_spark_has(master: str, cores: int | None) -> None:
    assert cores_of(master) == cores
    assert (cores_of("local[*]") or 0) >= 1


def halt_main(store: QueueStore) -> None:
    table = store.open("orders")
    send(table, messages_to_batches(["a"]), key="main", clock=CLOCK)
    ReceivePass(table=table, policy=FAULT, handler=refuse_all, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run("main")


def halt_poison(store: QueueStore) -> None:
    table, reader = store.open("orders"), PoisonSubQueue(receive_retry_count=0, receive_error_handling="Fault")
    send(table, messages_to_batches(["b"]), key="poison", clock=CLOCK)
    ReceivePass(table=table, policy=MOVE, handler=refuse_all, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run("move")
    ReceivePass(table=table, policy=reader, handler=refuse_all, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run("poison")


@pytest.mark.parametrize(
    ("sub_queue", "halts", "found"),
    [
        ("main", [halt_poison], None),
        ("main", [halt_main], "main"),
        ("poison", [halt_main], None),
        ("poison", [halt_poison], "poison"),
        ("any", [], None),
        ("any", [halt_poison], "poison"),
        ("any", [halt_poison, halt_main], "main"),
    ],
)
def test_poi_1_the_sensor_watches_the_endpoint_that_is_asked_for(
    store: QueueStore, sub_queue: str, halts: list[Callable[[QueueStore], None]], found: str | None
) -> None:
    """The reader of the poison sub-queue is an endpoint of its own: it halts alone."""
    declare(store, "orders", MOVE, CLOCK)
    for halt in halts:
        halt(store)

    looked = QueueDisabledSensor(task_id="wait", queue_name="orders", sub_queue=sub_queue).poke({})

    assert bool(looked.is_done) == (found is not None)
    told: Any = looked.xcom_value or {}
    assert (told.get("sub_queue"), told.get("state")) == (found, "faulted" if found else None)


def test_a_sensor_of_no_endpoint_is_refused() -> None:
    with pytest.raises(SettingError, match="sub_queue='retry' is not allowed; allowed: main, poison, any"):
        QueueDisabledSensor(task_id="wait", queue_name="orders", sub_queue="retry")
