"""A run that poison has made lasts until its messages are poison no more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred

from airflow_poison import Message, Msmq4
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.move import put_back, remove_messages
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.sensors import QueuePoisonGoneSensor
from airflow_poison.triggers import QueueTrigger
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import QueueNotFoundError, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

    from .conftest import Ran

CLOCK = SystemClock()
MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")


def never(message: Message) -> None:
    raise ValueError("no")


def poison(store: QueueStore, key: str = "one", messages: int = 3) -> tuple[QueueTable, dict[str, Any]]:
    """Make messages poison; return the queue, and what a watcher tells of it."""
    table = declare(store, "orders", MOVE, CLOCK)
    since = table.snapshot().version
    send(table, messages_to_batches([b"bad"] * messages), key=key, clock=CLOCK)
    ReceivePass(table=table, policy=MOVE, handler=never, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run(key)
    return table, {"event": "poisoned", "queue": "orders", "versions": [since, table.snapshot().version]}


def made_by(*payloads: dict[str, Any]) -> Any:
    """The context of a run that these happenings have made."""
    events = [SimpleNamespace(extra={"from_trigger": True, "payload": payload}) for payload in payloads]
    return {"triggering_asset_events": {"asset": events} if events else {}}


def sensor(**parameters: Any) -> QueuePoisonGoneSensor:
    return QueuePoisonGoneSensor(task_id="wait", queue_name="orders", deferrable=True, **parameters)


def deferred(task: QueuePoisonGoneSensor, context: Any) -> QueueTrigger:
    with pytest.raises(TaskDeferred) as raised:
        task.execute(context)
    assert isinstance(raised.value.trigger, QueueTrigger)
    return raised.value.trigger


def test_it_waits_for_the_messages_that_made_the_run_and_for_no_others(store: QueueStore) -> None:
    table, first = poison(store)
    _, second = poison(store, "two")
    deferred(sensor(), made_by(first))

    put_back(table, CLOCK, [1])
    remove_messages(table, CLOCK, [2])
    deferred(sensor(), made_by(first))
    remove_messages(table, CLOCK, [3])

    assert sensor().execute(made_by(first)) == {"queue": "orders", "messages": 3}
    deferred(sensor(), made_by(first, second))


def test_a_run_made_by_hand_waits_until_poison_is_empty(store: QueueStore) -> None:
    table, _ = poison(store)
    deferred(sensor(), made_by())
    remove_messages(table, CLOCK, [1, 2, 3])
    assert sensor().execute(made_by()) == {"queue": "orders", "messages": None}


def test_a_run_that_another_queue_has_made_does_not_wait(store: QueueStore) -> None:
    _, told = poison(store)
    assert sensor().execute(made_by(told | {"queue": "bills"})) == {"queue": "orders", "messages": 0}


def test_messages_may_be_named(store: QueueStore) -> None:
    table, _ = poison(store)
    deferred(sensor(lookup_ids="[2]"), made_by())
    remove_messages(table, CLOCK, [2])
    assert sensor(lookup_ids=[2]).execute(made_by()) == {"queue": "orders", "messages": 1}
    with pytest.raises(SettingError, match="lookup_ids"):
        sensor(lookup_ids="two").execute(made_by())


def test_the_trigger_fires_when_a_file_is_gone_and_the_task_goes_on_waiting_for_the_rest(store: QueueStore) -> None:
    table, told = poison(store)
    task = sensor(poke_interval=0.1)
    path, kwargs = deferred(task, made_by(told)).serialize()
    assert path == "airflow_poison.triggers.QueueTrigger"

    async def fired() -> dict[str, Any]:
        stream = QueueTrigger(**kwargs).run()
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await asyncio.to_thread(remove_messages, table, CLOCK, [1])
        event = await asyncio.wait_for(waiting, 30)
        payload: dict[str, Any] = event.payload
        return payload

    payload = asyncio.run(fired())

    with pytest.raises(TaskDeferred):
        sensor().execute_complete(made_by(told), payload)
    remove_messages(table, CLOCK, [2, 3])
    assert sensor().execute_complete(made_by(told), payload) == {"queue": "orders", "messages": 3}
    with pytest.raises(QueueNotFoundError, match="it is gone"):
        sensor().execute_complete(made_by(told), {"error": "QueueNotFoundError", "message": "it is gone"})


def test_a_poke_reads_no_message_while_nothing_has_left(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_poison.watching import queue_events as module

    _, told = poison(store)
    task = sensor()
    deferred(task, made_by(told))
    poison(store, "two")
    monkeypatch.setattr(module, "poison_files", lambda *_: pytest.fail("read again"))
    assert not task.poke(made_by(told)).is_done


def test_without_deferring_it_pokes(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    declare(store, "orders", MOVE, CLOCK)
    with DAG("pokes", schedule=None) as dag:
        QueuePoisonGoneSensor(task_id="wait", queue_name="orders", deferrable=False, poke_interval=0.1, timeout=5)
    assert run_dag(dag).returned["wait"] == {"queue": "orders", "messages": None}
