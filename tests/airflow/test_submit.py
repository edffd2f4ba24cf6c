"""A pass whose driver is submitted to a real standalone cluster: beside the task, and on one of the workers."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_poison import DeltaChanges, Msmq4
from airflow_poison.operators.submit import QueueReceiveSubmitOperator
from airflow_poison.passes.alter import declare
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.store.control import QueueState
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import ClaimLostError, HandlerNotFoundError, SparkJobError
from tests.given.waiting import until
from tests.spark.places.task import until_gone
from tools.servers.spark import APPLICATION, QUICK, standalone

from .conftest import define_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow.sdk import Context
    from pyspark.sql import DataFrame

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message
    from tools.servers.spark import Cluster

    from .conftest import Ran

POLICY = Msmq4(receive_retry_count=1, max_retry_cycles=0, receive_error_handling="Move")
FAULT = Msmq4(receive_retry_count=0, max_retry_cycles=0)
CONF = {**APPLICATION, "spark.driver.extraJavaOptions": QUICK, "spark.sql.shuffle.partitions": "2"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(autouse=True)
def forgotten_pipes() -> Iterator[None]:
    """The provider's hook leaves the pipes of its processes to the garbage collector: it finds them here, where nobody minds."""
    yield
    gc.collect()


@pytest.fixture
def submitted(cluster: Cluster, store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> Callable[..., QueueReceiveSubmitOperator]:
    """Make an operator that submits to the cluster, to a queue of a few messages."""
    host, _, port = cluster.url.rpartition(":")
    extra = {"rest-port": cluster.rest_port}
    define_connection(monkeypatch, "spark_cluster", extra, conn_type="spark", host=host, port=int(port))

    def make(
        handler: Callable[[Message], object] | str | None, deploy_mode: str = "client", policy: Msmq4 = POLICY, **more: Any
    ) -> QueueReceiveSubmitOperator:
        return QueueReceiveSubmitOperator(
            task_id="receive",
            queue_name="orders",
            policy=policy,
            handler=handler,
            spark_conn_id="spark_cluster",
            deploy_mode=deploy_mode,
            driver_memory="512m",
            conf=CONF,
            **more,
        )

    return make


def sent(store: QueueStore, *bodies: str, policy: Msmq4 = POLICY) -> QueueTable:
    table = declare(store, "orders", policy, SystemClock())
    send(table, messages_to_batches(bodies), key=f"sent {len(bodies)}", clock=SystemClock())
    return table


def writes(path: Path) -> Callable[[Message], None]:
    """Return a handler as a DAG file has one: it travels by value."""
    name = str(path)

    def write(message: Message) -> None:
        import os
        from pathlib import Path

        with Path(name).open("a") as file:
            file.write(f"{message.text} {os.getpid()}\n")
        if message.text == "bad":
            raise ValueError("bad")
        while message.text == "linger" and not Path(f"{name}.go").exists():
            time.sleep(0.05)

    return write


class Store(dict[str, Any]):
    """Stands for what Airflow keeps of a task over its tries."""

    last: Any = None

    def set(self, key: str, value: object) -> None:
        """Keep one thing."""
        self[key] = self.last = value

    def delete(self, key: str) -> None:
        """Forget one thing."""
        self.pop(key, None)


def context(known: Store | None = None, pushed: list[Any] | None = None) -> Context:
    def push(*, key: str, value: object) -> None:
        if pushed is not None:
            pushed.append(value)

    instance = SimpleNamespace(dag_id="shop", run_id="run", task_id="receive", map_index=-1, stats_tags={}, xcom_push=push)
    return cast("Context", {"ti": instance, "task_state_store": known})


def dies(pushing: list[object]) -> Context:
    """Return the context of a task that dies when it passes its numbers on."""

    def die(value: object, **_: object) -> None:
        pushing.append(value)
        raise KeyboardInterrupt

    doomed = context()
    doomed["ti"].xcom_push = die  # type: ignore[assignment]
    return doomed


def begun(
    task: QueueReceiveSubmitOperator, told: Context, ended: list[BaseException] | None = None, returned: list[dict[str, object]] | None = None
) -> threading.Thread:
    """Execute a task on a thread of its own."""

    def execute() -> None:
        try:
            numbers = task.execute(told)
        except BaseException as error:
            if ended is None:
                raise
            ended.append(error)
        else:
            if returned is not None:
                returned.append(numbers)

    thread = threading.Thread(target=execute, daemon=True)
    thread.start()
    return thread


def called(path: Path) -> Counter[str]:
    return Counter(line.split()[0] for line in path.read_text().splitlines()) if path.exists() else Counter()


@pytest.mark.parametrize("deploy_mode", ["client", "cluster"])
def test_a_submitted_pass_returns_its_numbers(
    submitted: Callable[..., QueueReceiveSubmitOperator], run_dag: Callable[..., Ran], store: QueueStore, tmp_path: Path, deploy_mode: str
) -> None:
    table = sent(store, "good", "bad", "good")
    with DAG(f"submit_{deploy_mode}", schedule=None) as dag:
        submitted(writes(tmp_path / "calls"), deploy_mode)

    ran = run_dag(dag)

    assert ran.state == "success", ran.errors
    numbers = ran.returned["receive"]
    assert (numbers["received"], numbers["settled"], numbers["poisoned"], numbers["rollbacks"]) == (3, 2, 1, 2)
    assert called(tmp_path / "calls") == {"good": 2, "bad": 2}
    assert {file.sub_queue: file.rows for file in table.snapshot().files} == {"poison": 1}
    assert list(Path(table.uri, "_stage").glob("send-*")) == []


@pytest.mark.parametrize("deploy_mode", ["client", "cluster"])
def test_a_submitted_transformation_lands_its_rows_and_names_its_culprits(
    submitted: Callable[..., QueueReceiveSubmitOperator], store: QueueStore, tmp_path: Path, deploy_mode: str
) -> None:
    """As a DAG file has one: the function, and a function of Python in it, travel by value."""
    from deltalake import DeltaTable

    def double(df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f
        from pyspark.sql.types import IntegerType

        def twice(amount: str) -> int:
            return 2 * int(amount)

        return df.select("id", f.udf(twice, IntegerType())("amount").alias("amount"), f.expr("timestamp '9999-12-31 00:00:00+00:00'").alias("until"))

    bodies = [f'{{"id": {number}, "amount": "{"bad" if number == 3 else number}"}}' for number in range(1, 7)]
    table = sent(store, *bodies)
    output = str(tmp_path / "landed")

    task = submitted(None, deploy_mode, transform=double, schema="id int, amount string", output=output)
    numbers = task.execute(context())

    assert (numbers["received"], numbers["settled"], numbers["poisoned"], numbers["rollbacks"]) == (6, 5, 1, 2)
    landed = DeltaTable(output).to_pyarrow_table()
    assert dict(zip(landed["id"].to_pylist(), landed["amount"].to_pylist(), strict=True)) == {1: 2, 2: 4, 4: 8, 5: 10, 6: 12}
    assert landed["until"].to_pylist() == [datetime(9999, 12, 31, tzinfo=UTC)] * 5
    [poison] = [row for file in table.snapshot().files for row in table.read(file).to_pylist()]
    assert poison["last_error"]["type"] == "ValueError"


def test_a_submitted_pass_takes_a_source_in_place(submitted: Callable[..., QueueReceiveSubmitOperator], store: QueueStore, tmp_path: Path) -> None:
    from deltalake import DeltaTable, write_deltalake

    def doubled(df: DataFrame) -> DataFrame:
        return df.selectExpr("id", "2 * cast(amount AS int) AS amount")

    table, raw, output = sent(store, '{"id": 0, "amount": "1"}'), str(tmp_path / "raw"), str(tmp_path / "landed")
    write_deltalake(raw, pa.table({"id": [1, 2, 3], "amount": ["1", "bad", "3"]}))

    numbers = submitted(None, "client", transform=doubled, source=DeltaChanges(raw), output=output).execute(context())

    assert (numbers["received"], numbers["settled"], numbers["poisoned"], numbers["landed"]) == (2, 1, 1, {"output": 3})
    assert DeltaTable(output).to_pyarrow_table().sort_by("id")["id"].to_pylist() == [0, 1, 3]
    [poison] = [row for file in table.snapshot().files for row in table.read(file).to_pylist()]
    assert poison["body"] == b'{"id":2,"amount":"bad"}'


@pytest.mark.parametrize("deploy_mode", ["client", "cluster"])
def test_a_driver_that_is_killed_while_it_gives_rows_to_a_function_is_followed_by_one_that_gives_them_with_the_same_key(
    submitted: Callable[..., QueueReceiveSubmitOperator], store: QueueStore, tmp_path: Path, deploy_mode: str
) -> None:
    """As a DAG file has them: handler and function travel by value."""
    name = str(tmp_path / "taken")

    def text_of(message: Message) -> dict[str, object]:
        return {"text": message.text}

    def take(rows: pa.Table, key: str) -> None:
        import os
        import signal
        from pathlib import Path

        again = Path(name).exists()
        with Path(name).open("a") as file:
            file.write(f"{key} {sorted(map(str, rows['text'].to_pylist()))}\n")
        if not again:
            os.kill(os.getpid(), signal.SIGKILL)

    sent(store, "one", "two")
    known = Store()
    with pytest.raises((AirflowException, RuntimeError)):
        submitted(text_of, deploy_mode, deliver=take).execute(context(known))
    assert store.open("orders").snapshot().files == (), "the messages have settled"
    numbers = submitted(text_of, deploy_mode, deliver=take).execute(context(known))

    assert (numbers["received"], numbers["settled"], numbers["landed"]) == (2, 2, {"output": 2})
    first, second = (tmp_path / "taken").read_text().splitlines()
    assert first == second
    assert first.endswith(" ['one', 'two']")
    assert submitted(text_of, deploy_mode, deliver=take).execute(context(known))["landed"] == {}


def test_a_pass_that_halts_its_queue_fails_the_task_for_good(
    submitted: Callable[..., QueueReceiveSubmitOperator], store: QueueStore, tmp_path: Path
) -> None:
    table = sent(store, "good", "bad", policy=FAULT)
    pushed: list[Any] = []

    with pytest.raises(AirflowFailException, match=r"[Mm]essage 2"):
        submitted(writes(tmp_path / "calls"), policy=FAULT).execute(context(pushed=pushed))

    assert [numbers["settled"] for numbers in pushed] == [1]
    assert table.snapshot().control.state is QueueState.FAULTED


def test_what_the_driver_cannot_import_is_told_as_the_handlers_error(
    submitted: Callable[..., QueueReceiveSubmitOperator], store: QueueStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def land(message):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    table = sent(store, "good")

    with pytest.raises(HandlerNotFoundError, match="only_here:land"):
        submitted("only_here:land").execute(context())
    assert table.snapshot().claims == ()

    numbers = submitted("only_here:land", py_files=[str(tmp_path / "only_here.py")]).execute(context())
    assert numbers["settled"] == 1


@pytest.mark.parametrize("deploy_mode", ["client", "cluster"])
def test_a_driver_that_is_killed_ends_with_its_handlers_and_the_next_try_goes_on(
    submitted: Callable[..., QueueReceiveSubmitOperator], store: QueueStore, tmp_path: Path, deploy_mode: str
) -> None:
    table = sent(store, "one", "linger", "three")
    calls, known = tmp_path / "calls", Store()
    task = submitted(writes(calls), deploy_mode)
    ended: list[BaseException] = []
    trying = begun(task, context(known), ended=ended)
    until(lambda: called(calls)["linger"], "the handler lingers")
    handler = int(calls.read_text().split()[-1])

    task.on_kill()

    trying.join(120)
    [error] = ended
    assert isinstance(error, SparkJobError) or "KILLED" in str(error) or "Error code is: -9" in str(error), "the driver's last word, or Spark's"
    until_gone([handler])
    until(lambda: len(table.expired(SystemClock().now())) == 1, "the claim is given up")

    Path(f"{calls}.go").touch()
    numbers = submitted(writes(calls), deploy_mode).execute(context(known))
    assert (numbers["received"], numbers["settled"]) == (3, 3)
    assert called(calls) == {"one": 1, "linger": 2, "three": 1}
    assert known == {}


def test_of_two_tries_at_once_the_later_one_goes_on_and_tells_it_all(
    submitted: Callable[..., QueueReceiveSubmitOperator], store: QueueStore, tmp_path: Path
) -> None:
    """The first task was killed with its driver beside it, which goes on: two drivers of one run key."""
    sent(store, "one", "linger", "three")
    calls, ended, numbers = tmp_path / "calls", list[BaseException](), list[dict[str, object]]()
    first = begun(submitted(writes(calls)), context(), ended=ended)
    until(lambda: called(calls)["linger"], "the handler lingers")

    second = begun(submitted(writes(calls)), context(), returned=numbers)
    first.join(120)
    Path(f"{calls}.go").touch()
    second.join(120)

    assert [type(error) for error in ended] == [ClaimLostError]
    assert [(each["received"], each["settled"], each["passes"]) for each in numbers] == [(3, 3, 1)]
    assert called(calls) == {"one": 1, "linger": 2, "three": 1}
    assert list(store.open("orders").snapshot().claims) == []


def test_what_a_pass_has_told_is_told_again_until_a_task_has_passed_it_on(
    submitted: Callable[..., QueueReceiveSubmitOperator], store: QueueStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task dies when the driver has ended: first before the numbers are passed on, then with what the driver told; Spark is not needed again."""
    table = sent(store, "good", "bad", "good")

    def numbers_of(told: Context) -> tuple[object, ...]:
        numbers = submitted(writes(tmp_path / "calls")).execute(told)
        return numbers["received"], numbers["settled"], numbers["poisoned"]

    pushing: list[object] = []
    with pytest.raises(KeyboardInterrupt):
        numbers_of(dies(pushing))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(KeyboardInterrupt):
        numbers_of(dies(pushing))
    assert pushing[0] == pushing[1], "all that the driver told, its seconds, too"
    [outcome] = Path(table.uri, "_stage").glob("send-submitted-*/*/outcome.json")
    outcome.unlink()

    assert numbers_of(context()) == (3, 2, 1)
    assert numbers_of(context()) == (0, 0, 0)
    assert called(tmp_path / "calls") == {"good": 2, "bad": 2}


def test_a_driver_that_its_master_does_not_know_and_one_that_has_told_nothing_do_not_hold_the_task_up(
    submitted: Callable[..., QueueReceiveSubmitOperator], store: QueueStore, tmp_path: Path
) -> None:
    sent(store, "good")
    known = Store(spark_job_id="driver-19700101000000-0000")
    told = context(known)
    assert submitted(writes(tmp_path / "calls"), "cluster").execute(told)["settled"] == 1
    assert known == {}

    sent(store, "good", "good")
    known.set("spark_job_id", known.last)
    with pytest.raises(SparkJobError, match="ended without a word"):
        submitted(writes(tmp_path / "calls"), "cluster").execute(told)
    assert known == {}, "the next try submits"


def test_a_mapped_task_has_a_pass_for_each_queue(
    submitted: Callable[..., QueueReceiveSubmitOperator], run_dag: Callable[..., Ran], store: QueueStore, tmp_path: Path
) -> None:
    """What files the connection ships, and those of the operator, reach the driver."""
    (tmp_path / "mapped_helper.py").write_text("def landed(message):\n    assert message.text == 'good'\n")
    (tmp_path / "mapped_handler.py").write_text("from mapped_helper import landed\n\ndef land(message):\n    landed(message)\n")
    extra = {"store": store.uri, "spark_conf": {"spark.submit.pyFiles": str(tmp_path / "mapped_helper.py")}}
    sent(store, "good", "good")
    with pytest.MonkeyPatch.context() as patch, DAG("mapped_submit", schedule=None) as dag:
        define_connection(patch, "poison_default", extra)
        QueueReceiveSubmitOperator.partial(
            task_id="receive",
            handler="mapped_handler:land",
            policy=POLICY,
            py_files=[str(tmp_path / "mapped_handler.py")],
            spark_conn_id="spark_cluster",
            conf=CONF,
        ).expand(queue_name=["orders", "bills"])
        ran = run_dag(dag)

    assert ran.state == "success", ran.errors
    assert store.names() == ["bills", "orders"]
    assert store.open("orders").snapshot().files == ()


def test_a_try_whose_task_vanished_is_found_again(submitted: Callable[..., QueueReceiveSubmitOperator], store: QueueStore, tmp_path: Path) -> None:
    """The driver goes on by itself; the next try of the task waits for it and takes its numbers."""
    sent(store, "one", "linger", "three")
    calls, known = tmp_path / "calls", Store()
    begun(submitted(writes(calls), "cluster"), context(known))
    until(lambda: called(calls)["linger"] and known, "the handler lingers")

    found: list[dict[str, object]] = []
    again = begun(submitted(writes(calls), "cluster"), context(Store(known)), returned=found)
    Path(f"{calls}.go").touch()
    again.join(120)

    assert [(numbers["received"], numbers["crashes"]) for numbers in found] == [(3, 0)]
    assert called(calls) == {"one": 1, "linger": 1, "three": 1}
