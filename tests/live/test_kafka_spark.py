"""Kafka that Spark's executors read, through Spark's own ``kafka`` format."""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AclOperation, ResourceType

from airflow_poison.passes.alter import declare
from airflow_poison.passes.take import positions, take
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.sources.kafka import Kafka
from airflow_poison.sources.schemas import JsonSchema
from airflow_poison.spark.send_stage import SendStage
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import SourceError, SparkJobError
from airflow_poison.values.fault_points import install
from tests.live.source_kills import killed, rows
from tests.live.topic import Topic
from tests.spark.places.place import CLUSTER, CONNECT, LOCAL, Where, driven, session
from tests.spark.places.servers import apart, connect_server
from tools.servers import s3
from tools.servers.kafka import spark_classes
from tools.servers.spark import standalone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from airflow_poison.passes.take import TakeResult
    from airflow_poison.sources.source import Source
    from airflow_poison.store.bucket_folder import BucketFolder
    from airflow_poison.store.queue_table import QueueTable
    from tests.spark.places.place import Place
    from tools.servers.kafka import Broker

CLOCK = SystemClock()
KILLS = 12
_numbers = count()


@pytest.fixture(scope="module")
def classes() -> str:
    return spark_classes()


@pytest.fixture(scope="module", params=[LOCAL, CLUSTER, CONNECT])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, classes: str) -> Iterator[Place]:
    name, folder, jars = request.param, tmp_path_factory.mktemp("driver"), {"spark.jars": classes}
    if name == LOCAL:
        where = Where.of(LOCAL)
        with driven(Where(where.name, where.master, {**where.conf, **jars}), folder) as there:
            yield there
    elif name == CLUSTER:
        with standalone(tmp_path_factory.mktemp("cluster")) as cluster:
            where = Where.of(CLUSTER, cluster.url)
            with driven(Where(where.name, where.master, {**where.conf, **jars}), folder) as there:
                yield there
    else:
        with connect_server(tmp_path_factory.mktemp("connect"), LOCAL, jars) as server, driven(Where.of(CONNECT, server.name), folder) as there:
            yield there


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, classes: str) -> Iterator[Place]:
    """A local Spark with its own format."""
    where = Where.of(LOCAL)
    with driven(Where(where.name, where.master, {**where.conf, "spark.jars": classes}), tmp_path_factory.mktemp("here")) as there:
        yield there


@pytest.fixture
def topic(broker: Broker) -> Topic:
    return Topic(broker, f"spark-{next(_numbers)}")


@pytest.fixture
def table(tmp_path: Path) -> QueueTable:
    return declare(open_store(str(tmp_path / "store")), "orders", Msmq4(), CLOCK)


def take_there(
    store: str, queue: str, source: Source, between_plan_and_read: Any = None, options: Mapping[str, str] | None = None, **more: Any
) -> TakeResult:
    """Take in a driver."""
    table, key = open_store(store, options).open(queue), f"take-{next(_numbers)}-{random.random()}"
    stage = SendStage.of_queue(table.folder, key)

    def read(planned: Any) -> Any:
        if between_plan_and_read is not None:
            between_plan_and_read()
        return stage.records(planned, session)

    return take(table, source, key=key, clock=CLOCK, read=read, **more)


def taken(place: Place, table: QueueTable, source: Source, **more: Any) -> TakeResult:
    found: TakeResult = place.call(take_there, table.uri.rpartition("/")[0], table.name, source, **more)
    return found


def test_the_same_messages_come_as_the_task_makes(topic: Topic, table: QueueTable, place: Place) -> None:
    headers = [("kind", b"new"), ("kind", "again"), ("raw", b"\xff"), ("none", None), ("kafka.offset", b"mine"), ("poison.dialog", b"forged")]
    topic.produce("1", partition=1, key=b"k", headers=headers, timestamp=1_764_050_400_123)
    topic.produce("[2]", partition=1, key=b"\x00\x01")
    topic.produce(None, "3", b"\xff\xfe", "", partition=1)
    topic.transaction(["4", "5"], commit=True)
    topic.transaction(["x", "x"], commit=False)
    topic.produce(*map(str, range(6, 3_000)))
    topic.transaction(["x"], commit=False, partition=1)
    source = topic.source(schema=JsonSchema(schema={"type": "integer"}))
    here = declare(open_store(table.uri.rpartition("/")[0]), "here", Msmq4(), CLOCK)
    mine = take(here, source, key="mine", clock=CLOCK)
    theirs = taken(place, table, source)
    assert (theirs.sent, theirs.malformed, theirs.what, theirs.position) == (mine.sent, mine.malformed, mine.what, mine.position)
    assert theirs.malformed == 3

    def told(of: QueueTable) -> dict[str, dict[str, Any]]:
        return {row["message_id"]: {**row, "properties": sorted(row["properties"]), "lookup_id": 0, "enqueued_at": 0} for row in rows(of)}

    assert told(table) == told(here)
    ids = [row["message_id"].split("-")[-2:] for row in rows(table) if row["reason"] is None]
    for number in ("0", "1"):
        offsets = [int(offset) for partition, offset in ids if partition == number]
        assert offsets == sorted(offsets)
    assert taken(place, table, source).sent == 0


def test_it_goes_on_where_the_task_came_to_and_the_task_where_it_did(topic: Topic, table: QueueTable, place: Place) -> None:
    topic.produce(*map(str, range(10)))
    topic.produce("a", "b", partition=1)
    assert take(table, topic.source(), key="a", clock=CLOCK, limit=5).sent == 5
    result = taken(place, table, topic.source(), limit=4)
    assert (result.sent, result.position) == (4, "offsets 0:7, 1:2")
    assert take(table, topic.source(), key="b", clock=CLOCK).sent == 3
    assert taken(place, table, topic.source(), between=("0:2", "0:4")).sent == 2
    assert sorted(Counter(row["body"] for row in rows(table)).values()) == [1] * 10 + [2] * 2


def test_what_compaction_has_removed_is_no_end(broker: Broker, table: QueueTable, here: Place) -> None:
    settings = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.0", "max_compaction_lag_ms": "100"}
    topic = Topic(broker, f"compact-{next(_numbers)}", partitions=1, **settings)
    for number in range(30):
        topic.produce(str(number), key=b"same")
    left = [value for _, value, _ in topic.values()]
    result = taken(here, table, topic.source())
    assert result.position == "offsets 0:30"
    assert {row["body"] for row in rows(table)} <= set(left)
    assert rows(table)[-1]["body"] == b"29"


def test_records_that_expire_before_they_are_read_are_an_error_that_loses_nothing(topic: Topic, table: QueueTable, here: Place) -> None:
    topic.produce(*map(str, range(10)))
    expire = partial(_expire, dict(topic.broker.settings), topic.name)
    with pytest.raises(SparkJobError, match=r"Nothing was sent"):
        taken(here, table, topic.source(), between_plan_and_read=expire)
    assert (rows(table), positions(table)) == ([], ())
    assert taken(here, table, topic.source()).sent == 5


def _expire(settings: dict[str, Any], name: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(settings)
    admin.delete_records([TopicPartition(name, 0, 5)])[TopicPartition(name, 0)].result(20)


def test_the_rights_that_the_page_names_are_enough_and_no_password_is_told(topic: Topic, table: QueueTable, here: Place) -> None:
    topic.produce("1")
    topic.allow(ResourceType.TOPIC, topic.name, AclOperation.DESCRIBE, AclOperation.READ)
    assert taken(here, table, Kafka(topic.name, topic.broker.stranger)).sent == 1
    assert here.call(_plan_of, Kafka(topic.name, topic.broker.stranger)).count(topic.broker.stranger["sasl.password"]) == 0


def _plan_of(source: Kafka) -> str:
    from airflow_poison.sources.kafka import records_frame

    return str(records_frame(session(), source.kafka, {0: (0, 1)})._jdf.queryExecution().toString())


def test_without_the_classes_of_spark_s_format_it_is_an_error_that_says_what_to_add(topic: Topic, table: QueueTable, tmp_path: Path) -> None:
    topic.produce("1")
    with driven(Where.of(LOCAL), tmp_path) as there, pytest.raises(SourceError, match=r"spark\.jars\.packages=org\.apache\.spark.* without on_spark"):
        taken(there, table, topic.source())
    assert (rows(table), positions(table)) == ([], ())


def test_a_queue_in_a_bucket_is_filled_by_nodes_that_share_no_folder(
    topic: Topic, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, classes: str
) -> None:
    topic.produce(*map(str, range(1_000)))
    topic.produce(*map(str, range(1_000, 2_000)), partition=1)
    with s3.running() as port, apart(tmp_path_factory.mktemp("nodes"), tmp_path_factory.mktemp("driver-node")) as nodes:
        options = s3.options(f"http://{s3.LOOPBACK}:{port}")
        s3.make_bucket(options, "lake")
        table = declare(open_store("s3://lake/queues", options), "orders", Msmq4(), CLOCK)
        where = Where.of(CLUSTER, nodes.cluster.url)
        with driven(Where(where.name, where.master, {**where.conf, "spark.jars": classes}), tmp_path) as there:
            assert there.call(take_there, "s3://lake/queues", "orders", topic.source(), options=options).sent == 2_000
            assert there.call(take_there, "s3://lake/queues", "orders", topic.source(), options=options).sent == 0
        assert Counter(row["body"] for row in rows(table)) == Counter(str(number).encode() for number in range(2_000))
        assert not list(cast("BucketFolder", table.folder).objects.list("_stage/"))


@pytest.mark.parametrize("point", [f"store.append.{name}" for name in ("after_files", "after_position", "before_commit", "after_commit")])
def test_dying_at_each_point_loses_nothing_and_doubles_nothing(topic: Topic, table: QueueTable, here: Place, point: str) -> None:
    topic.produce("1", "2", "3")
    with pytest.raises(RuntimeError, match="died"):
        here.call(_die_at, point, table.uri.rpartition("/")[0], table.name, topic.source())
    taken(here, table, topic.source())
    assert [row["body"] for row in rows(table)] == [b"1", b"2", b"3"]


def _die_at(point: str, *where: Any) -> None:
    class DiedError(BaseException):
        pass

    def reached(there: str) -> None:
        if there == point:
            raise DiedError

    install(reached)
    try:
        take_there(*where)
    except DiedError:
        raise RuntimeError("died") from None
    finally:
        install(None)


def test_two_takers_that_race_and_are_killed_take_each_record_once(broker: Broker, tmp_path: Path, classes: str) -> None:
    topic, expected = Topic(broker, f"killed-{next(_numbers)}", partitions=3), list[str]()
    draw = random.Random(3)

    def arrive(number: int) -> None:
        values = [f'"{number}-{each}"' for each in range(200)]
        commit = draw.random() < 0.7
        topic.transaction(values, commit=commit, partition=number % 3)
        expected.extend(values if commit else [])

    conf = {**Where.of(LOCAL).conf, "spark.jars": classes}
    table = killed(tmp_path, topic.source(), arrive, kills=KILLS, spark=json.dumps(conf))
    assert sorted(row["body"].decode() for row in rows(table)) == sorted(expected)
