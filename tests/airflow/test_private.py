"""Masks and retentions that DAGs declare: what tasks log, return and alert has no hidden values."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, task

from airflow_poison import Files, JsonSchema, Message, Msmq4
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.manage import QueueInspectOperator, QueueRemoveOperator
from airflow_poison.operators.receive import QueueReceiveOperator, QueueToReceive
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.taskgroups import retry_cycle
from airflow_poison.values.errors import SettingError
from airflow_poison.values.masking import Masking

from .conftest import define_connection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_poison.store import QueueStore

    from .conftest import Ran

MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
CARD, MASK = "4111-1111-1111", ["$.card"]
BODY = json.dumps({"card": CARD, "n": 1})


def charge(message: Message) -> None:
    print("charging", message.json()["card"])  # noqa: T201  (what handlers do)
    raise ValueError(f"no such card in {message.text}")


@pytest.fixture
def light(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> QueueStore:
    """A store whose passes need no Spark."""
    define_connection(monkeypatch, "poison_default", {"store": store.uri, "spark": "auto"})
    return store


def mask_of(store: QueueStore, queue: str = "orders") -> Masking | None:
    return Masking.recorded(store.open(queue).snapshot().control.desk)


@pytest.mark.long
def test_nothing_that_a_cycle_says_has_hidden_values(
    light: QueueStore, run_dag: Callable[..., Ran], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[Any] = []
    with DAG("masked", schedule=None) as dag:
        send = QueueSendOperator(task_id="send", queue_name="orders", messages=[BODY], policy=MOVE, mask=MASK)
        cycle = retry_cycle("orders", MOVE, charge, mask=MASK, on_poison=[lambda context: told.append(context["poison_alert"])])
        look = QueueInspectOperator(task_id="look", queue_name="orders", lookup_id=1)
        send >> cycle >> look >> QueueRemoveOperator(task_id="remove", queue_name="orders", lookup_ids=[1])
    ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    assert ran.returned["retry_cycle.receive"]["poisoned"] == 1
    assert json.loads(ran.returned["look"]["messages"][0]["body"]) == {"card": "***", "n": 1}
    assert "no such card in" in ran.returned["look"]["messages"][0]["reason"]
    assert json.loads(ran.returned["remove"]["messages"][0]["body"]) == {"card": "***", "n": 1}
    assert told
    assert "charging ***" in caplog.text
    spoken = capfd.readouterr()
    for text in (ran.returned, told, caplog.text, spoken.out, spoken.err):
        assert CARD not in str(text)
    assert mask_of(light) == Masking(("$.card",))


def test_what_is_wrong_with_a_record_is_recorded_without_hidden_values(light: QueueStore, run_dag: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(f'{{"card": "{CARD}", "n": 1}}\n{{"card": "{CARD}", "n": 2\n')
    schema = JsonSchema({"properties": {"card": {"type": "integer"}}})
    with DAG("malformed", schedule=None) as dag:
        common: dict[str, Any] = {"policy": MOVE, "mask": MASK}
        QueueSendOperator(task_id="path", queue_name="path", path=f"{tmp_path}/one.json", format="json", priority="card", **common)
        QueueSendOperator(task_id="source", queue_name="source", source=Files(f"{tmp_path}/*.json", settled=timedelta(0), schema=schema), **common)
    assert run_dag(dag).state == "success"
    for name, said in (("path", "priority='card': '***' is no priority"), ("source", "$.card: '***' is not of type 'integer'")):
        table = light.open(name)
        rows = [row for file in table.snapshot().files for row in table.read(file).to_pylist()]
        first, second = (f"{row['reason']} {row['last_error']}" for row in rows)
        assert CARD not in first + second
        assert said in first
        assert f"MalformedError: line 2 of {tmp_path}/one.json: ***" in second


def test_whoever_declares_a_policy_declares_a_mask(light: QueueStore, run_dag: Callable[..., Ran]) -> None:
    with DAG("declared", schedule=None) as dag:

        @task.receive(queue_name="one", policy=MOVE, mask=["$.one"])
        def receive(message: Message) -> None:
            """Take it."""

        receive()  # type: ignore[call-arg]  # the pass gives it its messages
        several: list[Any] = [QueueToReceive(queue_name="two", policy=MOVE, mask=["$.two"]), {"queue_name": "three", "policy": MOVE.to_dict()}]
        QueueReceiveOperator(task_id="several", queues=several, handler="json:loads", mask=["$.three"])
    assert run_dag(dag).state == "success"
    for name in ("one", "two", "three"):
        assert mask_of(light, name) == Masking((f"$.{name}",))
    [event] = light.open("one").events()
    assert event.details["desk"] == "mask"
    assert event.details["who"].startswith("dag:declared/")
    assert event.details["who"].endswith("/receive")


def test_the_hook_declares_a_mask_and_shows_hidden_values_when_it_is_asked_to(light: QueueStore) -> None:
    hook = QueueHook()
    hook.queue("orders", MOVE, mask="$.card")
    hook.queue("orders")
    assert mask_of(light) == Masking(("$.card",))
    with DAG("sending", schedule=None):
        sending = QueueSendOperator(task_id="send", queue_name="orders", messages=[BODY], send_key="one")
    sending.execute({"ti": None})  # type: ignore[typeddict-item]  # a send with a key asks for no task
    assert hook.queue("orders").inspect(lookup_id=1).messages[0].body != BODY.encode()
    assert hook.queue("orders").inspect(lookup_id=1, unmask=True).messages[0].body == BODY.encode()
    hook.queue("orders", mask=[])
    assert mask_of(light) is None


def test_a_wrong_mask_is_refused_when_the_dag_is_parsed() -> None:
    with DAG("wrong", schedule=None), pytest.raises(SettingError, match="mask='card' is not allowed"):
        QueueReceiveOperator(task_id="receive", queue_name="orders", handler="json:loads", mask=["card"])
