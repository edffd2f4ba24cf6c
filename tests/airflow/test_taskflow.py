"""TaskFlow: functions that receive and functions whose results are sent."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd  # type: ignore[import-untyped]  # it has no types
import polars as pl
import pyarrow as pa
import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowSkipException

from airflow_poison import Message, Msmq4, ServiceBroker
from airflow_poison.values.errors import HandlerNotFoundError, InputError, SettingError
from tests.given import forked

from . import fresh

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.store import QueueStore

    from .conftest import Ran

MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def bodies(store: QueueStore, queue: str = "orders") -> list[bytes]:
    table = store.open(queue)
    return sorted(body or b"" for file in table.snapshot().files for body in table.read(file).column("body").to_pylist())


DAG_FILE = '''
from airflow.sdk import DAG, task
from airflow_poison import Msmq4

POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
KNOWN = {"one", "two"}

with DAG("taskflow", schedule=None):

    @task
    def numbers():
        return ["one", "two"]

    @task.send(queue_name="orders", policy=POLICY)
    def order(names, ds, also="three"):
        return [*names, also]

    @task.receive(queue_name="orders", policy=POLICY)
    def land(message) -> dict:
        """Land it."""
        if message.text not in KNOWN:
            raise LookupError(message.text)

    @task
    def tell(pass_):
        return [pass_["settled"], pass_["poisoned"]]

    order(numbers()) >> (landed := land())
    tell(landed)
'''


def test_a_dag_file_sends_and_receives_with_functions(store: QueueStore, run_dag: Callable[..., Ran], spark: SparkSession, tmp_path: Path) -> None:
    """The handler travels by value, with the DAG file's variables; its numbers are the task's result."""
    from airflow.dag_processing.dagbag import DagBag

    (tmp_path / "orders_dag.py").write_text(DAG_FILE)
    bag = DagBag(str(tmp_path / "orders_dag.py"))
    assert bag.import_errors == {}
    dag = bag.dags["taskflow"]
    ran = run_dag(dag)
    assert ran.state == "success", ran
    assert ran.returned["tell"] == [2, 1]
    assert ran.returned["order"] == {"queue": "orders", "sent": 3, "first_lookup_id": 1, "repeated": False, "held": 0, "malformed": 0}
    assert bodies(store) == [b"three"]
    assert dag.get_task("land").doc_md == "Land it."


def test_a_receive_takes_every_setting_of_the_operator_and_several_queues(
    store: QueueStore, run_dag: Callable[..., Ran], spark: SparkSession
) -> None:
    with DAG("several", schedule=None) as dag:

        @task.send(queue_name="{{ 'ord' }}ers", policy=MOVE)
        def orders() -> list[str]:
            return ["a"]

        @task.send(queue_name="bills", policy=ServiceBroker())
        def bills() -> list[str]:
            return ["b"]

        @task.receive(queues=["orders", "bills"], isolation="none", task_id="take_all")
        def take(message: Message) -> None:
            pass

        [orders(), bills()] >> take()  # type: ignore[call-arg]  # the queue gives the message
    ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    assert ran.returned["take_all"]["totals"]["settled"] == 2


def rows() -> list[dict[str, int]]:
    return [{"n": 1}, {"n": 2}]


def none() -> list[str]:
    return []


def lazily() -> Any:
    yield {"n": 1}
    yield {"n": 2}


def arrow() -> pa.Table:
    return pa.table({"n": [1, 2]})


def pandas() -> pd.DataFrame:
    return pd.DataFrame({"n": [1, 2]}, index=["a", "b"])


def polars() -> pl.DataFrame:
    return pl.DataFrame({"n": [1, 2]})


def sparks(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(1,), (2,)], "n int")


def path(base: str = "{{ '/nowhere' }}") -> str:
    return base


@pytest.mark.parametrize("function", [rows, lazily, arrow, pandas, polars, sparks], ids=lambda function: function.__name__)
def test_rows_and_data_frames_become_messages(
    function: Callable[..., Any], store: QueueStore, run_dag: Callable[..., Ran], spark: SparkSession
) -> None:
    with DAG("kinds", schedule=None) as dag:
        task.send(queue_name="orders", policy=MOVE)(function)()
    ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    assert [body.replace(b" ", b"") for body in bodies(store)] == [b'{"n":1}', b'{"n":2}']


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_read_by_spark(
    kind: Callable[[str], object], store: QueueStore, run_dag: Callable[..., Ran], spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "2026.json").write_text('{"body": "x"}\n{"body": "y"}\n')
    with DAG("path", schedule=None) as dag:

        @task.send(queue_name="orders", policy=MOVE, format="json", body="body")
        def files(folder: str) -> object:
            return kind(f"{folder}/2026.json")

        files("{{ '" + str(tmp_path) + "' }}")
    ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    assert bodies(store) == [b"x", b"y"]


def test_a_rerun_sends_nothing_twice_and_each_mapped_task_sends_its_own(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    calls: list[str] = []
    with DAG("again", schedule=None) as dag:

        @task.send(queue_name="orders", policy=MOVE)
        def order(name: str, times: int) -> list[str]:
            calls.append(name)
            return [name] * times

        order.partial(times=2).expand(name=["a", "b"])
    for _ in range(2):
        assert run_dag(dag, when=WHEN).state == "success"
    assert bodies(store) == [b"a", b"a", b"b", b"b"]
    assert sorted(calls) == ["a", "b"]


def test_a_try_that_failed_sends_nothing_and_the_next_sends_all(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    tries: list[int] = []
    with DAG("fails_first", schedule=None) as dag:

        @task.send(queue_name="orders", policy=MOVE)
        def order() -> Any:
            tries.append(1)
            yield "a"
            if len(tries) == 1:
                raise ConnectionError("no network")
            yield "b"

        order()
    ran = run_dag(dag, when=WHEN)
    assert isinstance(ran.errors["order"], ConnectionError)
    assert bodies(store) == []
    run_dag(dag, when=WHEN)
    assert bodies(store) == [b"a", b"b"]


def test_a_function_may_skip_its_task(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    with DAG("skips", schedule=None) as dag:

        @task.send(queue_name="orders", policy=MOVE)
        def order() -> list[str]:
            raise AirflowSkipException

        order()
    assert run_dag(dag).tasks == {"order": "skipped"}


def test_nothing_may_be_sent(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    with DAG("nothing", schedule=None) as dag:
        task.send(queue_name="orders", policy=MOVE)(none)()
    assert run_dag(dag).returned["none"]["sent"] == 0


@pytest.mark.parametrize("returned", [None, 5, b"bytes", {"a": 1}], ids=repr)
def test_what_cannot_be_sent_is_refused_by_name(returned: object, store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    with DAG("wrong", schedule=None) as dag:

        @task.send(queue_name="orders", policy=MOVE)
        def order() -> object:
            return returned

        order()
    error = run_dag(dag).errors["order"]
    assert isinstance(error, InputError)
    assert f"order returned {type(returned).__name__}; expected a list" in str(error)
    assert bodies(store) == []


def with_context(message: Message, ti: Any) -> None: ...


def without() -> None: ...


async def later(message: Message) -> None:
    await asyncio.sleep(0)


def yields(message: Message) -> Any:
    yield message


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (with_context, r"with_context\(.*cannot be called with a message alone"),
        (without, r"without\(.*cannot be called with a message alone"),
        (later, "coroutine function"),
        (yields, "generator function"),
    ],
)
def test_what_can_be_no_handler_is_refused_when_the_dag_is_parsed(function: Any, says: str) -> None:
    with pytest.raises(HandlerNotFoundError, match=says):
        task.receive(queue_name="orders")(function)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "queue_name=None is not allowed.*@task.receive.queue_name='orders'"),
        ({"queue_name": "orders", "handler": "json:loads"}, "decorate the function"),
        ({"queue_name": "orders", "queues": ["bills"]}, "either queue_name or queues"),
        ({"queue_name": "orders", "max_mesages": 3}, "max_mesages"),
    ],
)
def test_wrong_settings_of_a_receive_are_refused_when_the_dag_is_parsed(settings: dict[str, Any], says: str) -> None:
    with DAG("wrong_receive", schedule=None), pytest.raises((SettingError, TypeError), match=says):
        task.receive(**settings)(json_of)()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "queue_name=None is not allowed.*@task.send.queue_name='orders'"),
        ({"queue_name": "orders", "messages": ["a"]}, "return it from the function"),
        ({"queue_name": "orders", "path": "/data"}, "return it from the function"),
    ],
)
def test_wrong_settings_of_a_send_are_refused_when_the_dag_is_parsed(settings: dict[str, Any], says: str) -> None:
    with DAG("wrong_send", schedule=None), pytest.raises(SettingError, match=says):
        task.send(**settings)(list)()


def test_the_decorators_need_their_settings() -> None:
    with pytest.raises(SettingError, match=r"@task.receive\(queue_name='orders'\)"):
        task.receive(without)
    with pytest.raises(SettingError, match=r"@task.send\(queue_name='orders'\)"):
        task.send(without)


def test_arguments_of_a_receive_are_refused_called_or_mapped() -> None:
    land = task.receive(queue_name="orders")(json_of)
    with DAG("given", schedule=None), pytest.raises(HandlerNotFoundError, match=r"json_of\('a'\) was given arguments.*Call json_of\(\)"):
        land("a")  # type: ignore[arg-type]  # that is what is refused
    with DAG("mapped", schedule=None), pytest.raises(HandlerNotFoundError, match="Call json_of"):
        land.expand(message=["a"])


def json_of(message: Message) -> None:
    message.json()


def test_the_executors_queue_is_not_touched_and_a_function_called_twice_is_two_tasks() -> None:
    with DAG("twice", schedule=None) as dag:
        land = task.receive(queue_name="orders")(json_of)
        land()  # type: ignore[call-arg]  # the queue gives the message
        land()  # type: ignore[call-arg]
        task.send(queue_name="orders")(rows).expand_kwargs([{}])
    assert dag.task_ids == ["json_of", "json_of__1", "rows"]
    assert {dag.get_task(name).queue for name in dag.task_ids} == {"default"}


def test_parsing_the_decorators_imports_nothing_heavy() -> None:
    code = (
        "import airflow_poison.decorators as r, airflow_poison.decorators as s;"
        "r.receive_task(queue_name='q', task_id='r')(lambda message: None)(); s.send_task(queue_name='q', task_id='s')(lambda: [])();"
    )
    ran = forked.run(fresh.print_heavy_imports, code)
    assert ran.printed.splitlines()[-1:] == ["[]"], ran.errors[-2_000:]
