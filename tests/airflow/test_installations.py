"""Several Airflows on one store: each with its own metadata database, the same DAG, run and task, and keys that do not meet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse, GetVariable, OKResponse, PutVariable, VariableResult

from airflow_poison import Msmq4
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators import base
from airflow_poison.operators.manage import QueueAlertOperator
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import LEASE, ReceivePass
from airflow_poison.passes.runs import run_key
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import PoisonError, SettingError

from .conftest import define_connection
from .installation_process import Installation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow.sdk import Context

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message

CLOCK = SystemClock()
MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
MADE = "20260101T000000Z-0123456789abcdef"


def context() -> Context:
    """What a task instance is told of itself: the same in both Airflows."""
    instance = SimpleNamespace(dag_id="shop", run_id="run", task_id="do", map_index=-1, id="7", xcom_push=lambda **_: None)
    return cast("Context", {"ti": instance})


@pytest.fixture
def airflow(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Become another Airflow, by the connection's field; the empty one is a version that knew no installations."""
    declare(store, "orders", MOVE, CLOCK)

    def become(name: str) -> None:
        define_connection(monkeypatch, "poison_default", {"store": store.uri, "spark": "local[2]", "installation": name})

    monkeypatch.setattr(QueueHook, "engine", lambda _self, *_: LocalEngine())
    return become


def accept(message: Message) -> None:
    del message


def refuse(message: Message) -> None:
    raise ValueError(message.text)


def key(table: QueueTable) -> str:
    task = context()["ti"]
    return run_key(table.uri, task.dag_id, task.run_id, task.task_id, task.map_index)


def rows(table: QueueTable) -> int:
    return sum(file.rows for file in table.snapshot().files)


def sending(**more: Any) -> dict[str, Any]:
    return QueueSendOperator(task_id="do", queue_name="orders", messages=[b"a", b"b"], **more).execute(context())


# Two databases ------------------------------------------------------------------------------------------------------------


@pytest.mark.campaign
def test_the_same_run_of_two_airflows_sends_the_messages_of_both_and_a_rerun_sends_nothing(tmp_path: Path, airflow_database: Path) -> None:
    first, second = (Installation(tmp_path / name, tmp_path / "store", airflow_database) for name in ("first", "second"))

    sends = [airflow.run() for airflow in (first, second, first)]

    assert [sent["repeated"] for sent in sends] == [False, False, True]
    assert [sent["first_lookup_id"] for sent in sends] == [1, 3, 1]
    assert rows(open_store(str(tmp_path / "store")).open("orders")) == 4


# Keys ---------------------------------------------------------------------------------------------------------------------


def test_equal_tasks_of_two_installations_send_both_and_a_send_key_is_shared(store: QueueStore, airflow: Callable[[str], None]) -> None:
    repeated = []
    for name in ("prod", "staging", "prod", "staging"):
        airflow(name)
        repeated.append((sending()["repeated"], sending(send_key="orders of today")["repeated"]))

    assert repeated == [(False, False), (False, True), (True, True), (True, True)]
    assert rows(store.open("orders")) == 6


def test_a_key_says_which_airflow_wrote_it(store: QueueStore, airflow: Callable[[str], None]) -> None:
    airflow("prod")
    sending()
    table = store.open("orders")
    assert table.has_number([f"send:by-prod.{key(table)}"])


def test_the_claim_of_another_installation_is_not_resumed(store: QueueStore, airflow: Callable[[str], None]) -> None:
    table = store.open("orders")
    send(table, messages_to_batches([b"a"]), key="given", clock=CLOCK)
    theirs = table.claim(f"by-prod.{key(table)}-0", lease=LEASE, now=CLOCK.now(), max_messages=9)

    airflow("staging")
    result = QueueReceiveOperator(task_id="do", queue_name="orders", handler=accept, isolation="none").execute(context())

    assert result["received"] == 0
    assert table.snapshot().claims == (theirs,)


# Alerts -------------------------------------------------------------------------------------------------------------------


def test_each_installation_is_told_of_what_happened_alone(store: QueueStore, airflow: Callable[[str], None]) -> None:
    table = store.open("orders")

    def poison(key: str) -> None:
        send(table, messages_to_batches([b"bad"]), key=key, clock=CLOCK)
        ReceivePass(table=table, policy=MOVE, handler=refuse, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run(key)

    def alerts(name: str) -> int:
        airflow(name)
        return len(QueueAlertOperator(task_id="do", queue_name="orders", on_poison=[lambda _context: None]).execute(context()))

    poison("one")
    assert [alerts(name) for name in ("prod", "staging", "prod")] == [1, 1, 0]
    poison("two")
    assert [alerts(name) for name in ("prod", "staging", "prod")] == [1, 1, 0]


# The id of a metadata database --------------------------------------------------------------------------------------------


class Api:
    """The part of Airflow that keeps Variables: one of them."""

    def __init__(self) -> None:
        self.value: str | None = None
        self.error: ErrorResponse | None = None
        self.put: list[str] = []

    def send(self, message: object) -> object:
        if isinstance(message, PutVariable):
            self.value = message.value
            self.put.append(str(message.value))
            return OKResponse(ok=True)
        assert isinstance(message, GetVariable)
        if self.error is not None:
            raise AirflowRuntimeError(self.error)
        if self.value is None:
            return ErrorResponse(error=ErrorType.VARIABLE_NOT_FOUND, detail={"key": message.key})
        return VariableResult(key=message.key, value=self.value)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    """A supervisor of a task, whose database has no id yet; time passes at once."""
    from airflow.sdk.execution_time import task_runner

    made = Api()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", made, raising=False)
    monkeypatch.setattr("airflow_poison.operators.base.time.sleep", lambda _seconds: None)
    return made


def test_the_first_task_makes_the_id_and_all_others_find_it(api: Api) -> None:
    made = base.installation_id()
    assert api.put == [made]
    assert base.installation_id() == made


def test_of_two_tasks_that_make_the_id_at_once_both_use_the_later_one(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "airflow_poison.operators.base.time.sleep", lambda _seconds: setattr(api, "value", MADE)
    )  # the other one writes while this one waits
    assert base.installation_id() == MADE


def test_a_young_id_counts_only_when_nobody_can_overwrite_it_any_more(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    first = base.installation_id()
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        api.value = MADE

    monkeypatch.setattr("airflow_poison.operators.base.time.sleep", sleep)
    assert base.installation_id() == MADE != first
    assert waited == [base.SETTLED]


def test_an_api_server_that_fails_is_not_taken_for_one_that_has_no_id(api: Api) -> None:
    api.value, api.error = MADE, ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 503})
    with pytest.raises(PoisonError, match=r"cannot be read or made: API_SERVER_ERROR.*'installation' in the extra"):
        base.installation_id()
    assert api.put == []


def test_an_id_that_people_have_spoilt_is_refused(api: Api) -> None:
    api.value = "../x"
    with pytest.raises(SettingError, match=r"Variable airflow_poison_installation='../x' is not allowed"):
        base.installation_id()


def test_an_installation_that_is_no_name_is_refused(airflow: Callable[[str], None]) -> None:
    airflow("../prod")
    with pytest.raises(SettingError, match=r"poison_default\.extra\.installation='../prod' is not allowed; allowed: 1 to 40 letters"):
        sending()
