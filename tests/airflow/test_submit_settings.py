"""What a submitted pass is told, and what is refused before anything is submitted: no Spark is needed for that."""

from __future__ import annotations

import base64
import json
import pickle
import signal
import sys
import threading
import time
import zipfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_poison.operators.submit import QueueReceiveSubmitOperator
from airflow_poison.passes.alter import alter, declare
from airflow_poison.passes.runs import ReceiveResult
from airflow_poison.passes.submitted import PassOrder, carry_out
from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.store.control import QueueState
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import HandlerNotFoundError, SettingError, SparkDistributionError
from tests import local_driver

from .conftest import define_connection
from .test_submit import POLICY, Store, context, sent

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from airflow_poison.store import QueueStore
    from airflow_poison.values.message import Message

    from .conftest import Ran


@pytest.fixture
def submitted(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> Callable[..., QueueReceiveSubmitOperator]:
    """Make an operator that submits to a cluster that is not there."""
    define_connection(monkeypatch, "spark_cluster", {}, conn_type="spark", host="spark://nobody", port=7077)
    sent(store, "one")

    def make(**more: Any) -> QueueReceiveSubmitOperator:
        given = {"queue_name": "orders", "handler": "json:loads", "policy": POLICY, "spark_conn_id": "spark_cluster", **more}
        return QueueReceiveSubmitOperator(task_id="receive", **given)

    return make


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[SparkSubmitHook]:
    """Stand for ``spark-submit``, which fails; return the hooks that have called it."""
    hooks: list[SparkSubmitHook] = []

    def submit(hook: SparkSubmitHook, application: str) -> None:
        assert application
        hooks.append(hook)
        raise OSError("no cluster")

    monkeypatch.setattr(SparkSubmitHook, "submit", submit)
    return hooks


def order_of(store: QueueStore) -> dict[str, Any]:
    [application] = Path(store.open("orders").uri, "_stage").glob("send-submitted-*/*/receive.py")
    return order_in(application)


def order_in(application: Path) -> dict[str, Any]:
    with zipfile.ZipFile(application) as archive:
        return cast("dict[str, Any]", json.loads(archive.read("order.json")))


def settings_in(order: dict[str, Any]) -> Any:
    return pickle.loads(base64.b64decode(order["receive"]))


@pytest.mark.parametrize("name", ["application", "application_args", "java_class"])
def test_the_application_is_not_the_users(name: str) -> None:
    with pytest.raises(SettingError, match=name):
        QueueReceiveSubmitOperator(task_id="receive", queue_name="orders", handler="json:loads", **cast("Any", {name: "mine"}))


def test_where_there_is_nothing_to_receive_nothing_is_submitted(
    submitted: Callable[..., QueueReceiveSubmitOperator], store: QueueStore, told: list[SparkSubmitHook]
) -> None:
    declare(store, "empty", POLICY, SystemClock())

    assert submitted(queue_name="empty").execute(context())["received"] == 0
    assert told == []


def test_a_halted_queue_is_refused_and_nothing_is_submitted(
    submitted: Callable[..., QueueReceiveSubmitOperator], store: QueueStore, told: list[SparkSubmitHook]
) -> None:
    store.open("orders").alter(lambda control: replace(control, state=QueueState.DISABLED))

    with pytest.raises(AirflowFailException, match="disabled"):
        submitted().execute(context())
    assert told == []


def test_a_blocked_queue_waits_and_nothing_is_submitted(
    submitted: Callable[..., QueueReceiveSubmitOperator], store: QueueStore, told: list[SparkSubmitHook]
) -> None:
    until = SystemClock().now().replace(year=2100, month=1, day=1, microsecond=0)
    table = store.open("orders")
    alter(table, SystemClock(), settings={}, system="DefaultMessaging")
    table.alter(lambda control: control.blocked(1, until))

    assert submitted(policy=DefaultMessaging()).execute(context())["blocked_until"] == until.isoformat()
    assert told == []


def test_without_spark_submit_the_error_says_where_it_was_looked_for(submitted: Callable[..., QueueReceiveSubmitOperator]) -> None:
    with pytest.raises(SparkDistributionError, match=r"spark3-submit is not found: .*PATH.*spark_binary"):
        submitted(spark_binary="spark3-submit").execute(context())


def test_what_the_provider_needs_for_kubernetes_is_told(
    submitted: Callable[..., QueueReceiveSubmitOperator], told: list[SparkSubmitHook], monkeypatch: pytest.MonkeyPatch
) -> None:
    define_connection(monkeypatch, "spark_cluster", {}, conn_type="spark", host="k8s://https://nobody:443")
    monkeypatch.delattr("airflow.providers.apache.spark.hooks.spark_submit.kube_client", raising=False)

    with pytest.raises(SparkDistributionError, match="pip install apache-airflow-providers-cncf-kubernetes"):
        submitted().execute(context())
    assert told == []


@pytest.mark.parametrize(
    ("variables", "said", "wanted"),
    [
        ({}, {}, {"spark.pyspark.python": sys.executable, "spark.pyspark.driver.python": sys.executable}),
        ({}, {"spark.pyspark.python": "env/bin/python"}, {"spark.pyspark.python": "env/bin/python", "spark.pyspark.driver.python": sys.executable}),
        ({"PYSPARK_PYTHON": "python3"}, {}, {"spark.pyspark.driver.python": sys.executable}),
        ({"PYSPARK_PYTHON": "python3", "PYSPARK_DRIVER_PYTHON": "python3"}, {}, {}),
    ],
    ids=["nothing is said", "executors have their own", "the environment names that of executors", "the environment names both"],
)
def test_a_driver_beside_the_task_runs_the_tasks_python_whatever_executors_run(  # noqa: PLR0917  (fixtures)
    submitted: Callable[..., QueueReceiveSubmitOperator],
    told: list[SparkSubmitHook],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    said: dict[str, str],
    wanted: dict[str, str],
) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(OSError, match="no cluster"):
        submitted(conf=said).execute(context())

    assert {name: value for name, value in told[0]._conf.items() if name.startswith("spark.pyspark.")} == wanted


def test_a_deploy_mode_that_spark_does_not_have_is_refused(submitted: Callable[..., QueueReceiveSubmitOperator]) -> None:
    with pytest.raises(SettingError, match=r"deploy_mode='clutser'.*client or cluster"):
        submitted(deploy_mode="clutser").execute(context())


def test_what_is_no_handler_is_told_here(submitted: Callable[..., QueueReceiveSubmitOperator], told: list[SparkSubmitHook]) -> None:
    with pytest.raises(HandlerNotFoundError, match=r"shop\.arrivals"):
        submitted(handler="shop.arrivals:land").execute(context())
    assert told == []


@pytest.mark.parametrize(("py_files", "says"), [("a.py,b.py", "a list of files"), (["gone.py"], "on the machine of the task")])
def test_files_that_cannot_be_shipped_are_told(submitted: Callable[..., QueueReceiveSubmitOperator], py_files: Any, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        submitted(py_files=py_files).execute(context())


def test_two_files_of_one_name_are_refused_and_one_that_is_named_twice_is_shipped_once(
    submitted: Callable[..., QueueReceiveSubmitOperator],
    store: QueueStore,
    told: list[SparkSubmitHook],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    mine, other = tmp_path / "deps.py", tmp_path / "others" / "deps.py"
    other.parent.mkdir()
    for path in (mine, other):
        path.touch()
    define_connection(monkeypatch, "poison_default", {"store": store.uri, "spark_conf": {"spark.submit.pyFiles": str(mine)}})

    with pytest.raises(SettingError, match=f"files of different names, and {mine} is there already"):
        submitted(py_files=[str(other)]).execute(context())
    with pytest.raises(OSError, match="no cluster"):
        submitted(py_files=[str(mine)]).execute(context())

    [_, shipped] = order_of(store)["files"]
    assert shipped == "files/deps.py"
    assert told[0]._py_files is None, "the application ships them"
    assert "spark.submit.pyFiles" not in told[0]._conf


def test_the_order_names_the_store_by_its_path_and_exception_types_by_their_names(
    submitted: Callable[..., QueueReceiveSubmitOperator], store: QueueStore, told: list[SparkSubmitHook], monkeypatch: pytest.MonkeyPatch
) -> None:
    define_connection(monkeypatch, "poison_default", {"store": f"file://{store.uri}", "durable": False, "spark_conf": {"spark.executor.cores": "3"}})

    with pytest.raises(OSError, match="no cluster"):
        submitted(unprocessable=[json.JSONDecodeError, "builtins:KeyError"], max_messages="7", conf={"spark.a": "b"}).execute(context())

    order = order_of(store)
    receive = settings_in(order)
    assert (order["store"], order["durable"], receive.max_messages) == (store.uri, False, 7)
    assert receive.unprocessable == ("json.decoder:JSONDecodeError", "builtins:KeyError")
    assert {"spark.executor.cores": "3", "spark.a": "b", "spark.python.task.killTimeout": "500ms"}.items() <= told[0]._conf.items()


def test_what_the_provider_adds_to_the_settings_at_the_last_moment_is_submitted(
    submitted: Callable[..., QueueReceiveSubmitOperator], told: list[SparkSubmitHook], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does for OpenLineage."""
    module = "airflow.providers.apache.spark.operators.spark_submit.inject_parent_job_information_into_spark_properties"
    monkeypatch.setattr(module, lambda conf, _context: {**conf, "spark.openlineage.parentRunId": "1"})

    with pytest.raises(OSError, match="no cluster"):
        submitted(openlineage_inject_parent_job_info=True).execute(context())

    assert told[0]._conf["spark.openlineage.parentRunId"] == "1"


def test_a_pass_that_has_finished_is_told_with_what_spark_said_besides(
    submitted: Callable[..., QueueReceiveSubmitOperator], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def submit(_hook: SparkSubmitHook, application: str) -> None:
        result = ReceiveResult("orders", "run", received=5, passes=1)
        Path(application).with_name("outcome.json").write_text(json.dumps({"result": result.to_dict()}))
        raise OSError("the network is gone")

    monkeypatch.setattr(SparkSubmitHook, "submit", submit)
    task = submitted()
    monkeypatch.setattr(task.log, "warning", lambda text, *parts: said.append(text % parts))

    assert task.execute(context())["received"] == 5
    assert said == ["The pass has finished, although Spark said: the network is gone"]


def test_a_task_that_is_out_of_time_kills_its_driver(
    submitted: Callable[..., QueueReceiveSubmitOperator], run_dag: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is over as soon as it has submitted."""
    killed: list[SparkSubmitHook] = []

    def submit(_hook: SparkSubmitHook, _application: str) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        time.sleep(600)

    monkeypatch.setattr(SparkSubmitHook, "submit", submit)
    monkeypatch.setattr(SparkSubmitHook, "on_kill", lambda hook: killed.append(hook))  # noqa: PLW0108  (a method)
    with DAG("submit_out_of_time", schedule=None) as dag:
        submitted(execution_timeout=timedelta(minutes=9))

    ran = run_dag(dag)

    assert [type(error).__name__ for error in ran.errors.values()] == ["AirflowTaskTimeout"]
    assert len(killed) == 1


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "failed"])
def test_the_claim_of_a_driver_that_is_gone_is_given_up_at_once(
    submitted: Callable[..., QueueReceiveSubmitOperator], store: QueueStore, monkeypatch: pytest.MonkeyPatch, *, killed: bool
) -> None:
    """The driver has died before it could do so itself."""
    table, task, clock = store.open("orders"), submitted(), SystemClock()
    expired: list[int] = []

    def submit(_hook: SparkSubmitHook, _application: str) -> None:
        table.claim(f"{order_of(store)['key']}-0", lease=timedelta(minutes=2), now=clock.now(), max_messages=10)
        if killed:
            task.on_kill()
        expired.append(len(table.expired(clock.now())))
        raise OSError("the driver is gone")

    monkeypatch.setattr(SparkSubmitHook, "submit", submit)
    with pytest.raises(OSError, match="the driver is gone"):
        task.execute(context())

    assert expired == [int(killed)]
    assert len(table.expired(clock.now())) == 1


def test_a_task_that_is_killed_before_it_submits_does_nothing(
    submitted: Callable[..., QueueReceiveSubmitOperator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler of a signal must not ask for connections: it may have interrupted such a question."""
    monkeypatch.setattr(SparkSubmitHook, "get_connection", lambda *_: pytest.fail("asked"))
    submitted().on_kill()


def test_a_cluster_that_cannot_be_asked_is_no_reason_for_another_driver(
    submitted: Callable[..., QueueReceiveSubmitOperator], told: list[SparkSubmitHook], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise ConnectionError("nobody")

    monkeypatch.setattr(QueueReceiveSubmitOperator, "_fetch_driver_status", unreachable)
    with pytest.raises(ConnectionError, match="nobody"):
        submitted(deploy_mode="cluster").execute(context(Store(spark_job_id="driver-1")))
    assert told == []


# Rows that go to a function


TAKEN: list[tuple[str, list[object]]] = []


def text_of(message: Message) -> dict[str, object]:
    return {"text": message.text}


def take(rows: pa.Table, key: str) -> None:
    TAKEN.append((key, rows["text"].to_pylist()))
    if len(TAKEN) == 1:
        raise KeyboardInterrupt  # as a driver that is killed: it tells nothing


def of_this_dag(rows: pa.Table, key: str) -> None:
    """Stand for a function of a DAG file."""


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand for ``spark-submit``, which runs the driver here; return the applications that it was given."""
    applications: list[str] = []
    TAKEN.clear()
    local_driver.without_jvm(monkeypatch)

    def submit(hook: SparkSubmitHook, application: str) -> None:
        assert hook._application_args == []
        applications.append(application)
        order = order_in(Path(application))
        del order["files"]
        try:
            carry_out(PassOrder(**order))
        except KeyboardInterrupt:
            raise OSError("the driver is gone") from None

    monkeypatch.setattr(SparkSubmitHook, "submit", submit)
    return applications


def test_the_order_carries_a_function_that_takes_rows_by_name_or_by_value(
    submitted: Callable[..., QueueReceiveSubmitOperator], store: QueueStore, told: list[SparkSubmitHook], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ordered(deliver: object) -> dict[str, Any]:
        with pytest.raises(OSError, match="no cluster"):
            submitted(deliver=deliver).execute(context())
        order = order_of(store)
        for folder in Path(store.open("orders").uri, "_stage").glob("send-submitted-*/*"):
            folder.rename(folder.parents[2] / f"seen-{folder.name}")
        return order

    by_name = settings_in(ordered(take)).deliver
    assert (by_name.name, by_name.by_value) == (f"{__name__}:take", None)
    monkeypatch.setattr(of_this_dag, "__module__", "__main__")
    by_value = settings_in(ordered(of_this_dag)).deliver
    assert by_value.name == "__main__:of_this_dag"
    assert pickle.loads(by_value.by_value).__doc__ == of_this_dag.__doc__
    assert len(told) == 2


def test_a_function_that_cannot_travel_is_told_here(submitted: Callable[..., QueueReceiveSubmitOperator], told: list[SparkSubmitHook]) -> None:
    lock = threading.Lock()

    def upsert(rows: object, key: str) -> None:
        with lock:
            pass

    with pytest.raises(SettingError, match=r"deliver='.*upsert' is not allowed; .* carried to the driver, .*lock.* or open connections inside it"):
        submitted(deliver=upsert).execute(context())
    assert told == []


def test_a_task_whose_driver_died_before_it_delivered_fails_and_its_next_try_has_a_driver_deliver_with_the_same_key(
    submitted: Callable[..., QueueReceiveSubmitOperator], store: QueueStore, driven: list[str]
) -> None:
    """The pass has committed; nothing is left to be received."""

    def once_more() -> dict[str, object]:
        return submitted(handler=text_of, deliver=take, isolation="none").execute(context())

    with pytest.raises(OSError, match="the driver is gone"):
        once_more()
    assert [file.rows for file in store.open("orders").snapshot().files] == []
    numbers = once_more()

    assert TAKEN[0] == TAKEN[1] == (TAKEN[0][0], ["one"])
    assert (numbers["received"], numbers["settled"], numbers["landed"]) == (1, 1, {"output": 1})
    assert (once_more()["received"], len(TAKEN), len(driven)) == (0, 2, 2), "nothing waits: nothing is submitted"


def test_a_task_whose_driver_died_before_its_rows_landed_fails_and_its_next_try_says_how_many_have(
    submitted: Callable[..., QueueReceiveSubmitOperator], driven: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    output = str(tmp_path / "landed")

    def once_more() -> dict[str, object]:
        return submitted(handler=text_of, output=output, isolation="none").execute(context())

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("airflow_poison.outputs.output_table.land", die)
        with pytest.raises(OSError, match="the driver is gone"):
            once_more()
    numbers = once_more()

    assert (numbers["received"], numbers["landed"]) == (1, {"output": 1})
    assert len(driven) == 1, "rows for a table need no driver"
