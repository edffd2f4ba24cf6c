"""Kafka, with a real broker: what is in a topic becomes messages, each once, and goes back, each once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclOperation,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from airflow_poison.desk import exports
from airflow_poison.desk.exports import send_selected
from airflow_poison.desk.selection import Selection
from airflow_poison.fsck.check import check
from airflow_poison.fsck.files import Severity
from airflow_poison.passes.alter import declare
from airflow_poison.passes.move import move
from airflow_poison.passes.take import positions, reset_position, take
from airflow_poison.passes.to_kafka import send_to_kafka, take_back_from_kafka
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.sources.kafka import Kafka
from airflow_poison.sources.schemas import JsonSchema
from airflow_poison.store import open_store
from airflow_poison.store.bucket_store import BucketStore
from airflow_poison.testing.sources import SourceContract
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import InputError, OutputError, SourceError, TableChangedError
from airflow_poison.values.fault_points import install
from tests.given.command import run
from tests.live.source_kills import rows
from tests.live.topic import Topic, until
from tools.servers import s3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_poison.passes.take import TakeResult
    from airflow_poison.store.queue_table import QueueTable
    from tools.servers.kafka import Broker

CLOCK = SystemClock()
_numbers = count()
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def topic(broker: Broker) -> Topic:
    return Topic(broker)


@pytest.fixture
def table(tmp_path: Path) -> QueueTable:
    return declare(open_store(str(tmp_path / "store")), "orders", Msmq4(), CLOCK)


def taken(table: QueueTable, source: Kafka, **more: Any) -> TakeResult:
    return take(table, source, key=f"take-{next(_numbers)}", clock=CLOCK, **more)


def bodies(table: QueueTable) -> list[str]:
    return [row["body"].decode() for row in rows(table)]


class TestContract(SourceContract):
    """A topic with one partition is a source."""

    @pytest.fixture(autouse=True)
    def _topic(self, broker: Broker) -> None:
        self.topic = Topic(broker, partitions=1)

    def source(self) -> Kafka:
        return self.topic.source()

    def add(self, bodies: Sequence[str]) -> None:
        self.topic.produce(*bodies)


def test_keys_headers_and_where_a_record_was_come_along(topic: Topic, table: QueueTable) -> None:
    headers = [("kind", b"new"), ("kind", "again"), ("raw", b"\xff"), ("none", None), ("kafka.offset", b"mine"), ("poison.dialog", b"forged")]
    topic.produce("a", partition=1, key=b"k", headers=headers, timestamp=1_764_050_400_123)
    topic.produce("[2]", partition=1, key=b"\x00\x01")
    topic.produce(None, partition=1)
    assert taken(table, topic.source(schema=JsonSchema(schema={}))).malformed == 1
    found = {row["message_id"]: row for row in rows(table)}
    first, second, third = (found[f"{topic.name}-1-{number}"] for number in range(3))
    assert (first["group_id"], second["group_id"], third["group_id"]) == ("k", "base64:AAE=", None)
    assert dict(first["properties"]) == {
        "kind": "new",
        "kind#2": "again",
        "raw": "base64:/w==",
        "none": "null:",
        "header.kafka.offset": "mine",
        "header.poison.dialog": "forged",
        "kafka.topic": topic.name,
        "kafka.partition": "1",
        "kafka.offset": "0",
        "kafka.timestamp": "2025-11-25T06:00:00.123Z",
    }
    assert (third["body"], dict(third["properties"])["kafka.tombstone"], third["sub_queue"]) == (b"", "true", "main")
    assert (first["sub_queue"], second["body"]) == ("poison", b"[2]")


def test_records_of_aborted_transactions_never_come_and_open_ones_later(topic: Topic, table: QueueTable) -> None:
    topic.transaction(["1", "2"], commit=True)
    topic.transaction(["x", "x"], commit=False)
    assert bodies_after(table, topic.source()) == ["1", "2"]
    open_one = Producer({**topic.broker.settings, "transactional.id": f"open-{topic.name}"})
    open_one.init_transactions(20)
    open_one.begin_transaction()
    open_one.produce(topic.name, "3", partition=0)
    open_one.flush(20)
    topic.produce("4")
    assert bodies_after(table, topic.source()) == ["1", "2"]
    open_one.commit_transaction(20)
    assert bodies_after(table, topic.source(), limit=1) == ["1", "2", "3"]
    assert bodies_after(table, topic.source()) == ["1", "2", "3", "4"]
    other = taken(table, topic.source(isolation="read_uncommitted", name="all"))
    assert other.sent == 6


def bodies_after(table: QueueTable, source: Kafka, **more: Any) -> list[str]:
    taken(table, source, **more)
    return bodies(table)


def test_what_compaction_has_removed_is_no_end(broker: Broker, table: QueueTable) -> None:
    topic = Topic(broker, partitions=1, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.0", max_compaction_lag_ms="100")
    for number in range(30):
        topic.produce(str(number), key=b"same")
    time.sleep(0.3)
    topic.produce("last", key=b"other")
    until(lambda: len(topic.values()) < 10, 60)
    left = [value.decode() for _, value, _ in topic.values()]
    result = taken(table, topic.source())
    assert (bodies(table), result.position) == (left, "offsets 0:31")
    assert taken(table, topic.source()).sent == 0


def test_a_topic_that_was_made_anew_is_an_error_that_says_how_to_go_on(topic: Topic, table: QueueTable) -> None:
    topic.produce("1", "2")
    taken(table, topic.source())
    topic.remove()
    topic.make()
    topic.produce("3", "4", "5")
    with pytest.raises(SourceError, match=f"was made anew.*reset-position QUEUE kafka:{topic.name}"):
        taken(table, topic.source())
    assert bodies(table) == ["1", "2"]
    reset_position(table, topic.source().name, CLOCK)
    assert bodies_after(table, topic.source()) == ["1", "2", "3", "4", "5"]


def test_partitions_that_are_added_begin_at_their_beginning(topic: Topic, table: QueueTable) -> None:
    topic.produce("1")
    taken(table, topic.source(start="latest"))
    topic.admin.create_partitions([NewPartitions(topic.name, 3)])[topic.name].result()
    until(lambda: len(topic.admin.list_topics(topic.name, timeout=5).topics[topic.name].partitions) == 3)
    topic.produce("2", "3", partition=2)
    assert bodies_after(table, topic.source(start="latest")) == ["2", "3"]


def test_latest_begins_with_what_comes_after_the_first_take(topic: Topic, table: QueueTable) -> None:
    topic.produce("old")
    result = taken(table, topic.source(start="latest"))
    assert (result.sent, positions(table)[0].position) == (0, "offsets 0:1, 1:0")
    topic.produce("new")
    assert bodies_after(table, topic.source(start="latest")) == ["new"]


def test_expired_records_are_an_error_and_can_be_skipped_knowingly(topic: Topic, table: QueueTable) -> None:
    topic.produce("1", "2")
    taken(table, topic.source())
    topic.produce("3", "4", "5")
    topic.admin.delete_records([TopicPartition(topic.name, 0, 4)])[TopicPartition(topic.name, 0)].result()
    with pytest.raises(SourceError, match=r"offsets 0:2-4, the end excluded, have expired .*expired='skip'"):
        taken(table, topic.source())
    assert bodies(table) == ["1", "2"]
    result = taken(table, topic.source(expired="skip"))
    assert (bodies(table), result.what) == (["1", "2", "5"], "offsets 0:4-5; expired and skipped: offsets 0:2-4")
    assert taken(table, topic.source()).sent == 0


def test_a_limit_is_shared_by_partitions(topic: Topic, table: QueueTable) -> None:
    topic.produce(*map(str, range(10)))
    topic.produce("a", "b", partition=1)
    result = taken(table, topic.source(), limit=6)
    assert (result.what, result.position) == ("6 at most of offsets 0:0-10, 1:0-2", "offsets 0:4, 1:2")
    assert taken(table, topic.source(), limit=100).sent == 6
    assert len(set(bodies(table))) == 12


def test_a_backfill_takes_what_is_between_two_places(topic: Topic, table: QueueTable) -> None:
    topic.produce("1", "2", timestamp=1_000_000)
    topic.produce("3", "4", timestamp=2_000_000)
    for start, end, expected in (
        ("0:1", "0:3", ["2", "3"]),
        ("0:0,1:0", "latest", ["1", "2", "3", "4"]),
        ("1970-01-01T00:30:00Z", "latest", ["3", "4"]),
        ("earliest", "1970-01-01T00:30:00+00:00", ["1", "2"]),
        ("0:3", "0:99", ["4"]),
    ):
        before = len(bodies(table))
        taken(table, topic.source(), between=(start, end))
        assert bodies(table)[before:] == expected, start
    assert positions(table) == ()
    for start, end in (("0:3", "0:1"), ("0:1", "1:1"), ("7:0", "7:1"), ("soon", "later")):
        with pytest.raises(InputError):
            taken(table, topic.source(), between=(start, end))


def test_what_cannot_be_read_says_what_to_do(topic: Topic, table: QueueTable) -> None:
    quick: dict[str, Any] = {"patience": timedelta(seconds=2)}
    for source, said in (
        (Kafka("no-such-topic", topic.broker.settings), "There is no topic 'no-such-topic'"),
        (Kafka(topic.name, topic.broker.stranger), "no right to read it .* Grant it Describe and Read"),
        (Kafka(topic.name, {"bootstrap.servers": "127.0.0.1:1"}, **quick), "no broker answers .*Connection refused"),
        (
            Kafka(topic.name, {**topic.broker.stranger, "sasl.password": "no"}, **quick),
            "refuse this user .*Invalid username or password.* Check user, password",
        ),
        (Kafka(topic.name, {"bootstrap.server": "x"}), "No such configuration property"),
        (Kafka(topic.name, "kafka_default"), "only Airflow can look up"),
    ):
        with pytest.raises(SourceError, match=said):
            taken(table, source)
    assert table.snapshot().files == ()
    assert "no-such-topic" not in topic.admin.list_topics(timeout=5).topics


def test_the_rights_that_the_page_names_are_enough(topic: Topic, table: QueueTable) -> None:
    reader, letters = topic.broker.stranger, Topic(topic.broker)
    topic.produce("1")
    topic.allow(ResourceType.TOPIC, topic.name, AclOperation.DESCRIBE, AclOperation.READ)
    assert bodies_after(table, Kafka(topic.name, reader)) == ["1"]
    topic.allow(ResourceType.TOPIC, letters.name, AclOperation.DESCRIBE, AclOperation.READ)
    with pytest.raises(OutputError, match=r"does not take the messages: .*uthoriz.* wait in the queue's outbox.* Needed are Read and Write on"):
        send_to_kafka(table, [1], Kafka(letters.name, reader), CLOCK)
    own = f"airflow-poison:{table.identity()}:{letters.name}"
    topic.allow(ResourceType.TOPIC, letters.name, AclOperation.WRITE)
    topic.allow(ResourceType.TRANSACTIONAL_ID, own, AclOperation.WRITE)
    topic.allow(ResourceType.GROUP, own, AclOperation.READ)
    assert send_to_kafka(table, [], Kafka(letters.name, reader), CLOCK).sent == 1
    assert [value for _, value, _ in letters.values()] == [b"1"]


# Killed -----------------------------------------------------------------------------------------------------------------


def start(what: str, root: Path, settings: Any, name: str, key: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.live.kafka_sender", what, str(root), json.dumps(dict(settings)), name, str(key)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_two_takers_that_race_and_are_killed_take_each_committed_record_once(broker: Broker, table: QueueTable, tmp_path: Path) -> None:
    topic = Topic(broker, "orders", partitions=3)
    draw, expected = random.Random(7), list[str]()
    processes = {name: start("take", tmp_path / "store", broker.settings, name, 0) for name in "ab"}
    try:
        for number in range(1, 41):
            values = [f"{number}-{each}" for each in range(100)]
            topic.transaction(values, commit=number % 4 != 0, partition=number % 3)
            expected += values if number % 4 else []
            time.sleep(draw.uniform(0.3, 1.6))
            name = draw.choice("ab")
            processes[name].kill()
            processes[name].wait()
            processes[name] = start("take", tmp_path / "store", broker.settings, name, number)
        until(lambda: sum(file.rows for file in table.snapshot().files) >= len(expected), 60)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    while taken(table, topic.source()).sent:
        pass
    assert sorted(bodies(table)) == sorted(expected)
    assert [row["lookup_id"] for row in rows(table)] == list(range(1, len(expected) + 1))
    [position] = positions(table)
    ends = topic.source().kafka.offsets(range(3), "latest")
    assert (position.messages, position.at["offsets"]) == (len(expected), {str(number): end for number, end in ends.items()})
    assert not [finding for finding in check(table, CLOCK).findings if finding.severity is Severity.ERROR]


# Back to Kafka -----------------------------------------------------------------------------------------------------------


def send(table: QueueTable, values: Sequence[str]) -> list[int]:
    from airflow_poison.passes.send import messages_to_batches
    from airflow_poison.passes.send import send as verb

    first = verb(table, messages_to_batches(values), key=f"send-{next(_numbers)}", clock=CLOCK).first_lookup_id
    return list(range(first, first + len(values)))


def test_messages_go_back_with_their_identity_and_leave_the_queue(topic: Topic, table: QueueTable) -> None:
    topic.produce("a", None, key=b"k", headers=[("kind", b"new")])
    taken(table, topic.source())
    send(table, ["b"])
    letters = Topic(topic.broker)
    result = send_to_kafka(table, [1, 2], letters.source(), CLOCK, key="group_id")
    assert (result.sent, result.finished, bodies(table), table.snapshot().outbox) == (2, 0, ["b"], ())
    assert send_to_kafka(table, [3], letters.source(), CLOCK).sent == 1
    found = {headers["poison.lookup_id"]: (key, value, headers) for key, value, headers in letters.values()}
    assert {number: each[:2] for number, each in found.items()} == {b"1": (b"k", b"a"), b"2": (b"k", None), b"3": (b"3", b"b")}
    headers = found[b"1"][2]
    assert (headers["kind"], headers["poison.origin_queue"], headers["kafka.offset"]) == (b"new", b"orders", b"0")
    assert headers["poison.queue_id"].decode() == table.identity()


@pytest.mark.parametrize(
    "point",
    [
        "pass.send_to_kafka.before_sending",
        "pass.to_kafka.before_transaction",
        "pass.to_kafka.before_commit",
        "pass.to_kafka.after_commit",
        "pass.to_kafka.before_removal",
    ],
)
def test_dying_at_any_point_sends_each_once(topic: Topic, table: QueueTable, point: str) -> None:
    class DiedError(BaseException):
        pass

    def die(name: str) -> None:
        if name == point:
            raise DiedError

    ids = send(table, ["1", "2", "3"])
    install(die)
    try:
        with pytest.raises(DiedError):
            send_to_kafka(table, ids, topic.source(), CLOCK)
    finally:
        install(None)
    send_to_kafka(table, [], topic.source(), CLOCK)
    assert sorted(value for _, value, _ in topic.values()) == [b"1", b"2", b"3"]
    assert table.snapshot().outbox == ()


def records_of(topic: Topic) -> list[tuple[Any, Any, list[tuple[str, Any]]]]:
    """Return what is in a topic of one partition: keys, values and headers but for those of the package."""
    consumer = Consumer({**topic.broker.settings, "group.id": "looker", "isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic.name, 0, 0)])
    found = list[tuple[Any, Any, list[tuple[str, Any]]]]()
    while (record := consumer.poll(20)) is not None and record.error() is None:
        headers: list[Any] = [pair for pair in record.headers() or () if not pair[0].startswith(("poison.", "kafka."))]
        found.append((record.key(), record.value(), headers))
    consumer.close()
    return found


def test_a_record_that_goes_back_is_the_same_record(broker: Broker, table: QueueTable) -> None:
    topic, letters = Topic(broker, partitions=1), Topic(broker, partitions=1)
    headers = [
        ("h", b"\0\x01"),
        ("h", b"two"),
        ("h#2", b"x"),
        ("none", None),
        ("empty", b""),
        ("t", b"null:"),
        ("b", b"base64:AA=="),
        ("header.h", b"1"),
    ]
    given_records = [
        (b"\xff\0", b"v", headers),
        (b"", b"", []),
        (None, b"w", [("", b"y")]),
        (b"base64:AA==", None, headers[::-1]),
        (b"null:", b"z", []),
    ]
    for key, value, pairs in given_records:
        topic.produce(value, key=key, headers=pairs)
    taken(table, topic.source())
    assert send_to_kafka(table, [1, 2, 3, 4, 5], letters.source(), CLOCK).sent == 5
    assert records_of(letters) == given_records


def poison_of(table: QueueTable) -> dict[int, str]:
    return {row["lookup_id"]: row["reason"] for row in rows(table) if row["sub_queue"] == "poison"}


@pytest.mark.parametrize("known", [True, False], ids=["the topic's limit is known", "it is not"])
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_record_that_is_too_large_comes_back_and_the_others_are_sent(
    broker: Broker, table: QueueTable, monkeypatch: pytest.MonkeyPatch, compression: str, *, known: bool
) -> None:
    small = Topic(broker, max_message_bytes="20000")
    if not known:
        monkeypatch.setattr("airflow_poison.sources.kafka_topic.Topic.largest", lambda _topic: None)
    values = [f"{number:03}" * 300 for number in range(60)]
    for number in (7, 8, 40, 59):
        values[number] = random.Random(number).randbytes(25_000).hex()
    ids = send(table, values)
    kafka = Kafka(small.name, {**broker.settings, "compression.type": compression})
    result = send_to_kafka(table, ids, kafka, CLOCK)
    assert (result.sent, result.returned, table.snapshot().outbox) == (56, 4, ())
    assert sorted(value.decode() for _, value, _ in small.values()) == sorted(value for value in values if len(value) < 1_000)
    reasons = poison_of(table)
    assert sorted(reasons) == [8, 9, 41, 60]
    assert all(f"topic {small.name!r} refuses the record of about 50," in reason and "too large" in reason for reason in reasons.values())
    assert not [finding for finding in check(table, CLOCK).findings if finding.severity is Severity.ERROR]
    assert not any("poison.destination" in dict(row["properties"] or ()) for row in rows(table))


def test_a_record_without_a_key_comes_back_from_a_compacted_topic(broker: Broker, table: QueueTable) -> None:
    topic, compacted = Topic(broker, partitions=1), Topic(broker, partitions=1, cleanup_policy="compact")
    for number in range(20):
        topic.produce(str(number), key=None if number in {3, 11} else str(number).encode())
    taken(table, topic.source())
    result = send_to_kafka(table, range(1, 21), compacted.source(), CLOCK)
    assert (result.sent, result.returned) == (18, 2)
    assert sorted(poison_of(table)) == [4, 12]
    assert "failed to validate record" in poison_of(table)[4]
    assert send_to_kafka(table, [4, 12], compacted.source(), CLOCK, key="lookup_id").sent == 2
    assert len(compacted.values()) == 20


def test_a_topic_that_refuses_every_record_keeps_none(broker: Broker, table: QueueTable) -> None:
    topic, compacted = Topic(broker, partitions=1), Topic(broker, partitions=1, cleanup_policy="compact")
    topic.produce(*map(str, range(12)))
    taken(table, topic.source())
    result = send_to_kafka(table, range(1, 13), compacted.source(), CLOCK)
    assert (result.sent, result.returned, sorted(poison_of(table)), compacted.values()) == (0, 12, list(range(1, 13)), [])


@pytest.mark.parametrize(
    "point",
    [
        "pass.to_kafka.before_transaction",
        "pass.to_kafka.before_commit",
        "pass.to_kafka.after_commit",
        "pass.to_kafka.after_hold",
        "pass.to_kafka.before_return",
        "store.replace.after_files",
        "store.replace.before_commit",
        "store.replace.after_commit",
        "pass.to_kafka.after_return",
        "pass.to_kafka.before_removal",
    ],
)
@pytest.mark.parametrize("nth", [1, 2])
def test_dying_while_a_record_is_refused_loses_and_doubles_nothing(broker: Broker, table: QueueTable, point: str, nth: int) -> None:
    """The second time is that of the file with the other messages."""
    small = Topic(broker, max_message_bytes="20000")
    ids = send(table, ["a", "x" * 30_000, "b"])

    class DiedError(BaseException):
        pass

    reached, names = count(1), list[str]()

    def die(name: str) -> None:
        names.append(name)
        if "pass.send_to_kafka.before_sending" in names and name == point and next(reached) == nth:
            raise DiedError

    install(die)
    try:
        with suppress(DiedError):
            send_to_kafka(table, ids, small.source(), CLOCK)
    finally:
        install(None)
    send_to_kafka(table, [], small.source(), CLOCK)
    assert sorted(value for _, value, _ in small.values()) == [b"a", b"b"]
    assert (list(poison_of(table)), len(rows(table)), table.snapshot().outbox) == ([2], 1, ())


@pytest.mark.parametrize("point", ["pass.to_kafka.before_commit", "pass.to_kafka.after_hold", "pass.to_kafka.before_return"])
@pytest.mark.parametrize("larger", [True, False], ids=["the topic takes it meanwhile", "it does not"])
def test_another_sender_that_begins_while_a_record_is_refused_sends_each_once(broker: Broker, table: QueueTable, point: str, *, larger: bool) -> None:
    small = Topic(broker, max_message_bytes="20000")
    ids = send(table, ["a", "x" * 30_000, "b"])

    def meanwhile(name: str) -> None:
        if name == point:
            install(None)
            if larger:
                allow(small, 100_000)
            send_to_kafka(table, [], small.source(), CLOCK)

    install(meanwhile)
    try:
        with pytest.raises((OutputError, TableChangedError)):
            send_to_kafka(table, ids, small.source(), CLOCK)
    finally:
        install(None)
    send_to_kafka(table, [], small.source(), CLOCK)
    sent = sorted(value[:1] for _, value, _ in small.values())
    assert (sent, list(poison_of(table))) == (([b"a", b"b", b"x"], []) if larger else ([b"a", b"b"], [2]))
    assert table.snapshot().outbox == ()


def test_another_sender_that_has_read_a_file_before_it_is_divided_sends_none_of_it(broker: Broker, table: QueueTable) -> None:
    """The later sender stops where it would send, or divide; the earlier one, which is shut out, divides; the later one goes on."""
    small = Topic(broker, max_message_bytes="20000")
    ids = send(table, ["a", "x" * 30_000, "b"])
    stands, divided, later = Event(), Event(), list[Thread]()

    def send_later() -> None:
        allow(small, 100_000)
        with suppress(OutputError, TableChangedError):
            send_to_kafka(table, [], small.source(), CLOCK)
        stands.set()

    def act(name: str) -> None:
        if later and current_thread() is later[0] and name in {"pass.to_kafka.before_commit", "pass.to_kafka.before_return"}:
            stands.set()
            assert divided.wait(30)
        elif not later and name == "pass.to_kafka.before_return":
            later.append(Thread(target=send_later))
            later[0].start()
            assert stands.wait(60)

    install(act)
    try:
        with suppress(OutputError, TableChangedError):
            send_to_kafka(table, ids, small.source(), CLOCK)
        divided.set()
        later[0].join()
    finally:
        install(None)
    send_to_kafka(table, [], small.source(), CLOCK)
    assert sorted([*(value[:1].decode() for _, value, _ in small.values()), *("x" for _ in poison_of(table))]) == ["a", "b", "x"]
    assert table.snapshot().outbox == ()


def test_a_sender_that_begins_again_looks_whether_another_one_has_sent_meanwhile(
    broker: Broker, table: QueueTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Topic(broker, max_message_bytes="20000")
    ids = send(table, ["a", "x" * 30_000, "b"])
    largest = type(small.source().kafka).largest
    monkeypatch.setattr("airflow_poison.sources.kafka_topic.Topic.largest", lambda _topic: None)

    class DiedError(BaseException):
        pass

    def meanwhile(name: str) -> None:
        if name == "pass.to_kafka.before_another_producer":
            monkeypatch.setattr("airflow_poison.sources.kafka_topic.Topic.largest", largest)
            allow(small, 100_000)
            install(die)
            with suppress(DiedError):
                send_to_kafka(table, [], small.source(), CLOCK)
            install(None)

    def die(name: str) -> None:
        if name == "pass.to_kafka.before_removal":
            raise DiedError

    install(meanwhile)
    try:
        with pytest.raises(OutputError, match="another sender of this queue has sent messages meanwhile"):
            send_to_kafka(table, ids, small.source(), CLOCK)
    finally:
        install(None)
    assert send_to_kafka(table, [], small.source(), CLOCK).finished == 3
    assert sorted(value[:1] for _, value, _ in small.values()) == [b"a", b"b", b"x"]


def allow(topic: Topic, size: int) -> None:
    """Let a topic take larger records, and wait until it does."""
    larger = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic.name, incremental_configs=[larger])
    next(iter(topic.admin.incremental_alter_configs([resource]).values())).result()
    until(lambda: topic.source().kafka.largest() == size)


@pytest.mark.parametrize("point", [None, "pass.to_kafka.after_commit", "pass.to_kafka.after_hold", "pass.to_kafka.before_return"])
def test_what_is_held_comes_back_and_what_is_in_the_topic_does_not(topic: Topic, table: QueueTable, point: str | None) -> None:
    class DiedError(BaseException):
        pass

    def die(name: str) -> None:
        if name in {"pass.send_to_kafka.before_sending", point}:
            raise DiedError

    def run_and_die(act: Callable[[], object]) -> None:
        install(die)
        try:
            with pytest.raises(DiedError):
                act()
        finally:
            install(None)

    run_and_die(lambda: send_to_kafka(table, send(table, ["a", "b"]), topic.source(), CLOCK))
    if point is not None:
        run_and_die(
            lambda: send_to_kafka(table, [], topic.source(), CLOCK) if "commit" in point else take_back_from_kafka(table, topic.source(), CLOCK)
        )
    result = take_back_from_kafka(table, topic.source(), CLOCK)
    there = point == "pass.to_kafka.after_commit"
    assert (result.returned, result.finished, result.sent) == ((0, 2, 0) if there else (2, 0, 0))
    assert (sorted(value for _, value, _ in topic.values()), sorted(poison_of(table))) == (([b"a", b"b"], []) if there else ([], [1, 2]))
    assert table.snapshot().outbox == ()
    if not there:
        assert send_to_kafka(table, [1, 2], topic.source(), CLOCK).sent == 2


def test_a_topic_that_is_not_there_moves_nothing(broker: Broker, table: QueueTable) -> None:
    ids, nowhere = send(table, ["a"]), Kafka("no-such-topic", broker.settings)
    with pytest.raises(SourceError, match="There is no topic"):
        send_to_kafka(table, ids, nowhere, CLOCK)
    with pytest.raises(SourceError, match="There is no topic"):
        take_back_from_kafka(table, nowhere, CLOCK)
    assert [row["sub_queue"] for row in rows(table)] == ["main"]


def test_a_file_that_is_in_the_topic_is_looked_at_before_others_are_sent(topic: Topic, table: QueueTable) -> None:
    """The next transaction takes the place of what says that it is there, and the sender may die again."""

    class DiedError(BaseException):
        pass

    def dying(point: str, ids: Sequence[int]) -> None:
        def die(name: str) -> None:
            if name == point:
                raise DiedError

        install(die)
        try:
            with suppress(DiedError):
                send_to_kafka(table, ids, topic.source(), CLOCK)
        finally:
            install(None)

    first, second = send(table, ["a"]) + send(table, ["b"])
    dying("pass.to_kafka.after_commit", [second])
    dying("pass.send_to_kafka.before_sending", [first])
    dying("pass.to_kafka.after_commit", [])
    send_to_kafka(table, [], topic.source(), CLOCK)
    assert sorted(value for _, value, _ in topic.values()) == [b"a", b"b"]
    assert table.snapshot().outbox == ()


def test_senders_that_race_and_are_killed_send_each_message_once(broker: Broker, table: QueueTable, tmp_path: Path) -> None:
    topic = Topic(broker, "letters")
    values = [f"letter {number}" for number in range(6_000)]
    send(table, values)
    draw = random.Random(3)
    for number in range(25):
        processes = [start("send", tmp_path / "store", broker.settings, name, number) for name in "ab"]
        time.sleep(draw.uniform(0.8, 2.0))
        for process in processes:
            process.kill()
            process.wait()
    left = [row["lookup_id"] for row in rows(table)]
    send_to_kafka(table, left, topic.source(), CLOCK)
    found = [value.decode() for _, value, _ in topic.values()]
    assert sorted(found) == sorted(values)
    assert (bodies(table), table.snapshot().outbox) == ([], ())


# A selection, and the command line --------------------------------------------------------------------------------------

EVERYTHING = Selection(sub_queue=None)


@pytest.fixture
def in_bucket(tmp_path: Path) -> Iterator[QueueTable]:
    """A queue in a bucket."""
    import boto3  # type: ignore[import-untyped]

    with s3.running() as port:
        url = f"http://{s3.LOOPBACK}:{port}"
        boto3.client("s3", endpoint_url=url, aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1").create_bucket(Bucket="lake")
        yield declare(BucketStore("s3://lake/queues", s3.options(url), node=tmp_path / "node"), "orders", Msmq4(), CLOCK)


def test_a_coordinator_that_moves_is_asked_again(topic: Topic, table: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    moves = iter((KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE))

    class Moving(confluent_kafka.Consumer):
        def committed(self, *args: Any, **options: Any) -> Any:
            if (code := next(moves, None)) is not None:
                raise KafkaException(KafkaError(code))
            return super().committed(*args, **options)

    send(table, list("ab"))
    monkeypatch.setattr(confluent_kafka, "Consumer", Moving)
    send_selected(table, EVERYTHING, topic.source(), CLOCK)
    assert not rows(table)
    assert next(moves, None) is None


@pytest.mark.parametrize("where", ["table", "in_bucket"])
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize(
    "point", ["desk.to_kafka.before_chunk", "pass.send_to_kafka.before_sending", "pass.to_kafka.after_commit", "pass.to_kafka.before_removal"]
)
def test_dying_in_any_chunk_sends_each_once(  # noqa: PLR0917
    topic: Topic, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, point: str, nth: int, where: str
) -> None:
    table: QueueTable = request.getfixturevalue(where)

    class DiedError(BaseException):
        pass

    reached = count(1)

    def die(name: str) -> None:
        if name == point and next(reached) == nth:
            raise DiedError

    monkeypatch.setattr(exports, "CHUNK", 2)
    send(table, list("abcde"))
    install(die)
    try:
        with pytest.raises(DiedError):
            send_selected(table, EVERYTHING, topic.source(), CLOCK)
    finally:
        install(None)
    gone = 5 - len(rows(table))
    assert gone == [0, 2, 4, 5][nth - (point == "desk.to_kafka.before_chunk")]
    send_selected(table, EVERYTHING, topic.source(), CLOCK)
    assert sorted(value for _, value, _ in topic.values()) == [b"a", b"b", b"c", b"d", b"e"]
    assert (bodies(table), table.snapshot().outbox) == ([], ())


@pytest.mark.parametrize("claimed", [False, True])
def test_what_somebody_has_moved_or_a_pass_has_claimed_meanwhile_stays(
    topic: Topic, table: QueueTable, monkeypatch: pytest.MonkeyPatch, *, claimed: bool
) -> None:
    def meanwhile(name: str) -> None:
        if name == "desk.to_kafka.before_chunk" and next(reached) == 1:
            move(table, CLOCK, [5], "main")
            if claimed:
                table.claim("a-pass", lease=timedelta(hours=1), now=CLOCK.now(), max_messages=9)

    reached = count()
    monkeypatch.setattr(exports, "CHUNK", 2)
    send(table, list("abcdef"))
    move(table, CLOCK, [1, 2, 3, 4, 5, 6], "poison")
    install(meanwhile)
    try:
        result = send_selected(table, Selection(), topic.source(), CLOCK)
    finally:
        install(None)
    assert (result.sent, result.left, bodies(table)) == (5, 1, ["e"])
    later = send_selected(table, EVERYTHING, topic.source(), CLOCK)
    assert (later.sent, later.left, bodies(table)) == ((0, 1, ["e"]) if claimed else (1, 0, []))


def test_the_command_line_sends_ids_and_selections_and_what_was_left(
    topic: Topic, table: QueueTable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"--topic {topic.name} --set {' '.join(f'{name}={value}' for name, value in topic.broker.settings.items())} --store {tmp_path}/store"
    send(table, list("abcd"))
    move(table, CLOCK, [3, 4], "poison")
    ran = run(capsys, f"send-to-kafka orders 1 --yes --reason late -o json {where}")
    assert json.loads(ran.out) == {"queue": "orders", "topic": topic.name, "sent": 1, "finished": 0, "left": 0, "returned": 0}
    ran = run(capsys, f"send-to-kafka orders --sub-queue poison --yes --key group_id {where}")
    assert (ran.out, ran.code) == (f"Sent 2 messages of orders to topic {topic.name}.\n", 0)
    ran = run(capsys, f"send-to-kafka orders --sub-queue poison --yes {where}")
    assert (ran.code, ran.err) == (1, "nothing: no message of orders is selected.\n")
    ran = run(capsys, f"send-to-kafka orders 2 --take-back {where}")
    assert (ran.code, "--take-back: expected no lookup ids" in ran.err) == (2, True)
    assert run(capsys, f"send-to-kafka orders --take-back {where}").out == "Took 0 messages of orders back into poison.\n"
    ran = run(capsys, f"send-to-kafka orders 3 --yes {where}")
    assert (ran.code, "Message 3 is not in" in ran.err) == (1, True)
    assert run(capsys, f"send-to-kafka orders {where}").out == f"Sent 0 messages of orders to topic {topic.name}.\n"
    assert (sorted(value for _, value, _ in topic.values()), bodies(table)) == ([b"a", b"c", b"d"], ["b"])
    assert {event.details.get("why") for event in table.events() if event.lookup_id == 1 and "place" in event.details} == {"late"}


def test_a_command_that_is_killed_again_and_again_sends_each_message_once(topic: Topic, table: QueueTable, tmp_path: Path) -> None:
    values = [f"letter {number}" for number in range(45_000)]
    send(table, values)
    settings = [f"{name}={value}" for name, value in topic.broker.settings.items()]
    what = ["send-to-kafka", "orders", "--topic", topic.name, "--sub-queue", "main", "--yes", "--store", str(tmp_path / "store")]
    draw, kills = random.Random(5), 0
    while True:
        process = subprocess.Popen([sys.executable, "-m", "airflow_poison", *what, "--set", *settings], cwd=ROOT, stdout=subprocess.DEVNULL)
        before = table.snapshot()
        try:
            until(lambda: process.poll() is not None or table.snapshot().version > before.version, 120)  # noqa: B023  (of this round)
            process.wait(draw.uniform(0, 0.6))
        except subprocess.TimeoutExpired:
            kills += 1
        finally:
            process.kill()
            process.wait()
        if not rows(table) and not table.snapshot().outbox:
            break
    assert kills >= 3
    assert sorted(value.decode() for _, value, _ in topic.values()) == sorted(values)
