"""Sources in DAGs: tasks that take what is new, functions that return a source, connections, and what was given wrongly."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, task

from airflow_poison import Files, Msmq4, Outbox, Reached, Source, Take
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.values.errors import SettingError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.sources.source import Connection, Position
    from airflow_poison.store import QueueStore

    from .conftest import Ran

MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
FIRST, SECOND = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    folder = tmp_path / "landing"
    folder.mkdir()
    return folder


def files(landing: Path, **settings: Any) -> Files:
    return Files(f"{landing}/*.json", settled=timedelta(0), name="landing", **settings)


def bodies(store: QueueStore, place: str = "main") -> list[bytes]:
    table = store.open("orders")
    return sorted(
        body for file in table.snapshot().files if file.sub_queue == place for body in table.read(file).column("body").to_pylist() if body is not None
    )


def test_each_run_takes_what_is_new_and_a_cleared_run_takes_nothing(store: QueueStore, run_dag: Callable[..., Ran], landing: Path) -> None:
    with DAG("takes", schedule=None) as dag:
        QueueSendOperator(task_id="send", queue_name="orders", source=files(landing), policy=MOVE, group="who")
    (landing / "a.json").write_text('{"who": "x"}\n{"who": \n')
    first = run_dag(dag, when=FIRST).returned["send"]
    assert {name: first[name] for name in ("queue", "source", "sent", "malformed", "repeated")} == {
        "queue": "orders",
        "source": "landing",
        "sent": 2,
        "malformed": 1,
        "repeated": False,
    }
    assert (bodies(store), bodies(store, "poison")) == ([b'{"who": "x"}'], [b'{"who": '])
    (landing / "b.json").write_text('{"who": "y"}\n')
    assert run_dag(dag, when=FIRST).returned["send"] | {"what": ""} == first | {"repeated": True, "what": ""}
    assert bodies(store) == [b'{"who": "x"}']
    assert run_dag(dag, when=SECOND).returned["send"]["sent"] == 1
    assert bodies(store) == [b'{"who": "x"}', b'{"who": "y"}']


def test_a_run_with_nothing_new_succeeds_and_says_so(store: QueueStore, run_dag: Callable[..., Ran], landing: Path) -> None:
    with DAG("takes_nothing", schedule=None) as dag:
        QueueSendOperator(task_id="send", queue_name="orders", source=files(landing), policy=MOVE)
    ran = run_dag(dag)
    assert (ran.state, ran.returned["send"]["sent"], ran.returned["send"]["what"]) == ("success", 0, "")


def test_a_function_returns_a_source_and_is_not_called_again(store: QueueStore, run_dag: Callable[..., Ran], landing: Path) -> None:
    calls: list[str] = []
    (landing / "a.json").write_text("1\n")
    with DAG("returns_a_source", schedule=None) as dag:

        @task.send(queue_name="orders", policy=MOVE, max_messages=5)
        def arrivals(ds: str) -> Files:
            calls.append(ds)
            return files(landing)

        arrivals()  # type: ignore[call-arg]  # Airflow gives the context
    for _ in range(2):
        ran = run_dag(dag, when=FIRST)
        assert ran.state == "success", ran.errors
    assert (bodies(store), calls) == ([b"1"], ["2026-01-01"])


def test_limit_and_backfill_are_templates(store: QueueStore, run_dag: Callable[..., Ran], landing: Path) -> None:
    for day in (1, 2, 3):
        path = landing / f"{day}.json"
        path.write_text(f"{day}\n")
        written = datetime(2026, 1, day, 12, tzinfo=UTC).timestamp()
        os.utime(path, (written, written))
    for when, given in ((FIRST, {"max_messages": "{{ 1 + 0 }}"}), (SECOND, {"backfill": ["{{ ds }}", "{{ macros.ds_add(ds, 1) }}"]})):
        with DAG("templates", schedule=None) as dag:
            QueueSendOperator(task_id="send", queue_name="orders", source=files(landing), policy=MOVE, **given)
        ran = run_dag(dag, when=when)
        assert ran.state == "success", ran.errors
    assert bodies(store) == [b"1", b"2"]
    assert [each.messages for each in QueueHook().queue("orders").positions()] == [1]


@dataclass(frozen=True)
class Account(Source):
    """One message of the connection that it names."""

    conn_id: str
    found: str = ""

    @property
    def name(self) -> str:
        return "account"

    def connected(self, find: Callable[[str], Connection]) -> Account:
        known = find(self.conn_id)
        return replace(self, found=f"{known.kind} {known.login}@{known.host}:{known.port}/{known.path} {json.dumps(known.extra)} {known.password}")

    def plan(self, position: Position, *, limit: int | None) -> Take | None:
        batch = pa.record_batch({"body": [self.found.encode()]})
        return None if position.at else Take(what="an account", batches=lambda: iter([batch]), reached=lambda: Reached({"done": True}))


def test_a_source_gets_the_connection_that_it_names(store: QueueStore, run_dag: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"conn_type": "postgres", "host": "db", "port": 5432, "login": "me", "password": "pw", "schema": "shop", "extra": {"sslmode": "require"}}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(known))
    with DAG("connected", schedule=None) as dag:
        QueueSendOperator(task_id="send", queue_name="orders", source=Account("shop"), policy=MOVE)
        QueueSendOperator(task_id="wrong", queue_name="orders", source=Account("shpo"), policy=MOVE)
    ran = run_dag(dag)
    assert bodies(store) == [b'postgres me@db:5432/shop {"sslmode": "require"} pw']
    assert isinstance(ran.errors["wrong"], SourceError)
    assert "There is no connection 'shpo'" in str(ran.errors["wrong"])


def test_an_outbox_behind_a_connection_is_emptied(
    store: QueueStore, run_dag: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, payload TEXT, urgent INTEGER)")
        database.execute("INSERT INTO outbox (payload, urgent) VALUES ('a', 9), ('b', 99)")
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "sqlite", "host": str(path)}))
    with DAG("outbox", schedule=None) as dag:
        source = Outbox("shop", "outbox", "id", delete=True)
        QueueSendOperator(task_id="send", queue_name="orders", source=source, body="payload", priority="urgent", policy=MOVE)
    ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    assert (ran.returned["send"]["sent"], ran.returned["send"]["malformed"]) == (2, 1)
    assert (bodies(store), bodies(store, "poison")) == ([b"a"], [b"b"])
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM outbox").fetchall() == [(0,)]


@dataclass(frozen=True)
class Counted(Source):
    """Three numbers, which Spark's executors count."""

    name: str = "counted"

    def plan(self, position: Position, *, limit: int | None) -> Take | None:
        def frame(spark: SparkSession) -> DataFrame:
            return spark.range(3).selectExpr("cast(cast(id as string) as binary) as body")

        def here() -> Iterator[pa.RecordBatch]:
            raise AssertionError("executors read it")

        return None if position.at else Take(what="three", batches=here, reached=lambda: Reached({"done": True}), frame=frame)


def test_executors_read_a_source_that_says_how(store: QueueStore, run_dag: Callable[..., Ran], spark: SparkSession) -> None:
    del spark
    with DAG("on_spark", schedule=None) as dag:

        @task.send(queue_name="orders", policy=MOVE, on_spark=True)
        def counted() -> Counted:
            return Counted()

        counted()
    for _ in range(2):
        ran = run_dag(dag, when=FIRST)
        assert ran.state == "success", ran.errors
    assert bodies(store) == [b"0", b"1", b"2"]


def test_the_hook_tells_positions_and_resets_them(store: QueueStore, landing: Path) -> None:
    (landing / "a.json").write_text("1\n")
    hook = QueueHook()
    hook.queue("orders", MOVE)
    assert hook.queue("orders").take(files(landing), key="one").sent == 1
    [known] = hook.queue("orders").positions()
    assert (known.source, known.kind, known.messages, known.malformed) == ("landing", "Files", 1, 0)
    assert hook.queue("orders").reset_position("landing", reason="the folder was emptied")
    assert hook.queue("orders").positions() == ()
    assert not hook.queue("orders").reset_position("landing")
    assert hook.queue("orders").take(files(landing), key="two").sent == 1


@pytest.mark.parametrize("given", [{"max_messages": 5}, {"backfill": ["a", "b"]}, {"on_spark": True}], ids=str)
def test_what_only_a_source_has_is_refused_without_one(store: QueueStore, run_dag: Callable[..., Ran], given: dict[str, Any]) -> None:
    with DAG("refused", schedule=None) as dag:
        QueueSendOperator(task_id="send", queue_name="orders", messages=["a"], policy=MOVE, **given)
    error = run_dag(dag).errors["send"]
    assert isinstance(error, SettingError)
    assert "only a source" in str(error)
    assert bodies(store) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_messages": "some"}, "max_messages='some'"),
        ({"max_messages": 0}, "limit=0"),
        ({"backfill": "2026"}, "two places of the source"),
        ({"on_spark": True}, "on_spark=True: Spark's executors cannot read this source; Kafka is one that they can. Leave it out. Nothing was sent."),
    ],
    ids=str,
)
def test_what_is_given_wrongly_is_named_and_nothing_is_sent(
    store: QueueStore, run_dag: Callable[..., Ran], landing: Path, given: dict[str, Any], says: str
) -> None:
    (landing / "a.json").write_text("1\n")
    with DAG("wrong", schedule=None) as dag:
        QueueSendOperator(task_id="send", queue_name="orders", source=files(landing), policy=MOVE, **given)
    assert says in str(run_dag(dag).errors["send"])
    assert bodies(store) == []


def test_what_is_no_source_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(SettingError, match=r"source='/landing/\*' is not allowed; allowed: Files, .* not str"):
        QueueSendOperator(task_id="send", queue_name="orders", source="/landing/*")  # type: ignore[arg-type]
