"""Kafka without a broker: settings, shares, and records as messages. What needs a broker is in ``tests/live/test_kafka.py``."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.passes.take import take
from airflow_poison.passes.to_kafka import record_of
from airflow_poison.sources.bodies import with_fields
from airflow_poison.sources.kafka import Kafka, java_settings, records_frame, settings_of, shared
from airflow_poison.sources.kafka_topic import Topic, to_columns, to_messages
from airflow_poison.sources.schemas import JsonSchema
from airflow_poison.sources.source import Connection, Position, Reached, Source, Take
from airflow_poison.spark.send_stage import SendStage
from airflow_poison.values.errors import InputError, SettingError, SourceError
from airflow_poison.values.mapping import ColumnMapping

if TYPE_CHECKING:
    from airflow_poison.sources.schemas import Schema
    from tests.given.passes import Queue

SERVERS = {"bootstrap.servers": "127.0.0.1:1"}


@dataclass
class Record:
    """A record as confluent-kafka gives it."""

    value_: bytes | None = b"{}"
    key_: bytes | None = None
    headers_: list[tuple[str, Any]] = field(default_factory=list)
    at: int = 0

    def value(self) -> bytes | None:
        return self.value_

    def key(self) -> bytes | None:
        return self.key_

    def headers(self) -> list[tuple[str, Any]] | None:
        return self.headers_ or None

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 1, self.at


@pytest.mark.parametrize(
    ("there", "limit", "expected"),
    [
        ({0: 10, 1: 2}, 6, {0: 4, 1: 2}),
        ({0: 10, 1: 10, 2: 10}, 7, {0: 2, 1: 2, 2: 3}),
        ({0: 1, 1: 5}, 1, {0: 0, 1: 1}),
        ({0: 3, 1: 3}, 100, {0: 3, 1: 3}),
        ({}, 5, {}),
    ],
)
def test_a_limit_is_shared_equally_as_far_as_there_is_something(there: dict[int, int], limit: int, expected: dict[int, int]) -> None:
    assert shared(there, limit) == expected


@pytest.mark.parametrize(
    "setting",
    [
        {"topic": " "},
        {"connection": ""},
        {"connection": {}},
        {"start": "soon"},
        {"isolation": "none"},
        {"expired": "lose"},
        {"patience": timedelta(0)},
        {"patience": 30},
    ],
)
def test_settings_are_refused_when_the_source_is_made(setting: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(setting))):
        Kafka(**{"topic": "orders", "connection": SERVERS, **setting})


def test_a_connection_has_the_settings_in_its_extra_and_may_run_no_programs() -> None:
    said = {"sasl.password": "secret", "error_cb": "os.system", "group.id": None}
    source = Kafka("orders").connected(lambda name: Connection(name, "kafka", "host", 9092, extra=said))
    assert source.connection == {"sasl.password": "secret", "bootstrap.servers": "host:9092"}
    assert "secret" not in repr(source)
    with pytest.raises(SourceError, match=r"'kafka_default' has no bootstrap\.servers"):
        settings_of(Connection("kafka_default"))
    for name in ("plugin.library.paths", "ssl.engine.location", "sasl.kerberos.kinit.cmd"):
        with pytest.raises(SourceError, match="which runs programs"):
            settings_of(Connection("kafka_default", extra={**SERVERS, name: "x"}))


def test_without_the_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(SourceError, match=r"pip install 'airflow-poison\[kafka\]'"):
        Kafka("orders", SERVERS).plan(Position(), limit=None)


def test_what_is_no_text_is_base64_and_no_header_passes_for_ours() -> None:
    headers = [("a", b"\0"), ("a#2", "x"), ("a", None), ("poison.destination", b"kafka:x"), ("kafka.topic", b"forged"), ("a", b""), ("t", b"null:")]
    [row] = to_messages(to_columns([Record(key_=b"\xff", headers_=headers, at=-1)]), "orders").to_pylist()
    assert row["group_id"] == "base64:/w=="
    assert dict(row["properties"]) == {
        "a": "base64:AA==",
        "a#2#1": "x",
        "a#2": "null:",
        "header.poison.destination": "kafka:x",
        "header.kafka.topic": "forged",
        "a#3": "",
        "t": "base64:bnVsbDo=",
        "kafka.topic": "orders",
        "kafka.partition": "3",
        "kafka.offset": "7",
        "kafka.timestamp": "-1",
    }
    assert row["message_id"] == "orders-3-7"


@pytest.mark.parametrize("text", ["", "plain", "caf\u00e9 \U0001f40d", '{"a": 1}', "base65:", "null", "h#two"])
def test_what_is_text_stays_readable(text: str) -> None:
    [row] = to_messages(to_columns([Record(key_=text.encode(), headers_=[(text or "x", text.encode())])]), "orders").to_pylist()
    assert (row["group_id"], row["properties"][0]) == (text, (text or "x", text))


ODD = st.sampled_from([b"", b"base64:", b"base64:AA==", b"base64:null", b"null:", b"null:\n", b"\0", b"\xff", b"\xef\xbb\xbfx", b"\xed\xa0\x80"])
VALUES = st.none() | ODD | st.binary(max_size=12) | st.text(max_size=8).map(str.encode)
NAMES = st.text(max_size=6) | st.builds(
    "".join,
    st.lists(
        st.sampled_from(["a", "#2", "#1", "#", "#02", "#\u0662", "header.", "kafka.", "poison.", "kafka.key", "kafka.topic", "base64:", "\n"]),
        max_size=4,
    ),
)
RECORDS = st.builds(Record, VALUES, VALUES, st.lists(st.tuples(NAMES, VALUES), max_size=6))


def sent_back(row: dict[str, Any], key: str = "record") -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    """Return the record that a message becomes, without the headers of the package itself, which come last."""
    found = record_of({"lookup_id": 1, "reason": None, **row}, "orders", "id", key)
    own = sum(name.startswith(("kafka.", "poison.")) for name, _ in row["properties"] if name not in {"kafka.tombstone", "kafka.key"})
    assert [name for name, _ in found.headers[-5:]] == [
        "poison.origin_queue",
        "poison.queue_id",
        "poison.lookup_id",
        "poison.message_id",
        "poison.reason",
    ]
    return found.key, found.value, found.headers[: -5 - own]


@given(st.lists(RECORDS, min_size=1, max_size=5))
def test_a_record_goes_back_with_its_own_key_value_and_headers(records: list[Record]) -> None:
    rows = to_messages(to_columns(records), "orders").to_pylist()
    assert [sent_back(row) for row in rows] == [(each.key_, each.value_, each.headers_) for each in records]
    for row in rows:
        names = [name for name, _ in row["properties"]]
        assert len(set(names)) == len(names)


@given(st.lists(RECORDS, min_size=1, max_size=5), st.lists(st.sampled_from(["a", "a#2", "b", "n"]), unique=True))
def test_a_mapping_replaces_neither_key_nor_headers(records: list[Record], mapped: list[str]) -> None:
    records = [replace(each, value_=b'{"a": "1", "b": "base64:AA==", "a#2": "3", "g": "group"}') for each in records]
    mapping = ColumnMapping(group="g", properties=tuple(mapped))
    made = with_fields(to_messages(to_columns(records), "orders"), mapping, datetime(2026, 1, 1, tzinfo=UTC)).to_pylist()
    added = [name for name in mapped if name != "n"]
    for row, record in zip(made, records, strict=True):
        key, _, headers = sent_back(row)
        assert (row["group_id"], key) == ("group", record.key_)
        assert headers[: len(headers) - len(added)] == record.headers_
        assert {name: dict(row["properties"])[name] for name in added} == {name: {"a": "1", "b": "base64:AA==", "a#2": "3"}[name] for name in added}
    assert sent_back(made[0], "group_id")[0] == b"group"


@pytest.mark.parametrize("key", [None, b"", b"k", b"\xff", b"null:"])
@pytest.mark.parametrize(("wanted", "otherwise"), [("record", None), ("group_id", b"1"), ("lookup_id", b"1")])
def test_the_key_of_a_record_is_its_own_unless_another_one_is_asked_for(key: bytes | None, wanted: str, otherwise: bytes | None) -> None:
    [row] = to_messages(to_columns([Record(key_=key)]), "orders").to_pylist()
    expected = key if key is not None and wanted != "lookup_id" else otherwise
    assert sent_back(row, wanted)[0] == expected


@given(st.dictionaries(NAMES, st.text(max_size=8) | st.sampled_from(["null:", "base64:AA=="]), max_size=5), st.none() | st.text(max_size=8))
def test_a_message_from_elsewhere_has_its_properties_as_they_are(properties: dict[str, str], group: str | None) -> None:
    row = {"lookup_id": 1, "message_id": None, "group_id": group, "body": b"b", "properties": list(properties.items()), "reason": None}
    found = record_of(row, "orders", "id", "record")
    assert (found.key, found.value) == (b"1", b"b")
    assert found.headers[:-5] == [(name, value.encode()) for name, value in properties.items()]
    assert record_of(row, "orders", "id", "group_id").key == (b"1" if group is None else group.encode())


@pytest.mark.parametrize(("was", "now", "expected"), [(None, b"", None), (None, b"x", b"x"), (b"", b"", b""), (b"v", b"w", b"w"), (b"v", b"", b"")])
def test_a_value_goes_back_as_it_is_now_and_a_tombstone_as_one(was: bytes | None, now: bytes, expected: bytes | None) -> None:
    [row] = to_messages(to_columns([Record(was)]), "orders").to_pylist()
    assert sent_back(row | {"body": now})[1] == expected


def test_text_that_only_looks_encoded_goes_back_as_it_is() -> None:
    properties = [
        ("h", "base64:AAE="),
        ("h#2", "two"),
        ("header.kafka.topic", "forged"),
        *((f"kafka.{name}", "1") for name in ("topic", "partition", "offset")),
    ]
    row = {"message_id": "orders-1-1", "group_id": "base64:broken", "body": b"v", "properties": properties}
    assert sent_back(row) == (b"base64:broken", b"v", [("h", b"\x00\x01"), ("h", b"two"), ("kafka.topic", b"forged")])


@pytest.mark.parametrize(
    ("given", "expected", "unknown"),
    [
        ({**SERVERS, "client.id": "x", "socket.keepalive.enable": True, "log_level": 3}, {**SERVERS, "client.id": "x"}, ""),
        (
            {"security.protocol": "sasl_ssl", "sasl.mechanisms": "scram-sha-512", "sasl.username": "me", "sasl.password": 'a"b\\c'},
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": 'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="a\\"b\\\\c";',
            },
            "",
        ),
        (
            {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "p", "ssl.ca.location": "/ca.pem"},
            {
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="p";',
                "ssl.truststore.location": "/ca.pem",
                "ssl.truststore.type": "PEM",
            },
            "",
        ),
        (
            {"ssl.ca.pem": "-----", "ssl.endpoint.identification.algorithm": "none"},
            {"ssl.truststore.certificates": "-----", "ssl.truststore.type": "PEM", "ssl.endpoint.identification.algorithm": ""},
            "",
        ),
        ({**SERVERS, "ssl.key.location": "/key.pem"}, {}, "ssl.key.location"),
        ({"sasl.mechanism": "OAUTHBEARER"}, {}, "sasl.mechanism"),
        ({"enable.ssl.certificate.verification": False}, {}, "enable.ssl.certificate.verification"),
    ],
)
def test_settings_of_librdkafka_become_those_of_the_java_client_or_the_first_that_cannot_is_named(
    given: dict[str, Any], expected: dict[str, str], unknown: str
) -> None:
    assert java_settings(given) == (expected, unknown)


def test_a_setting_that_only_the_task_s_client_has_is_refused_for_executors() -> None:
    topic = Topic({"bootstrap.servers": "here:9092", "oauthbearer.token.endpoint.url": "https://login"}, "flights", committed=True, patience=1.0)
    with pytest.raises(SourceError, match=r"oauthbearer\.token\.endpoint\.url is one of librdkafka alone.* without on_spark.* Nothing was sent"):
        records_frame(cast("Any", None), topic, {0: (0, 1)})


def test_a_source_that_executors_cannot_read_is_refused_before_spark_is_needed(queue: Queue) -> None:
    stage = SendStage.of_queue(queue.table.folder, "1")
    with pytest.raises(InputError, match=r"on_spark=True: Spark's executors cannot read this source; Kafka is one.* Nothing was sent"):
        take(queue.table, Records([Record()]), key="1", clock=queue.clock, read=lambda planned: stage.records(planned, pytest.fail))
    assert queue.table.snapshot().files == ()


@dataclass
class Records(Source):
    """Records that are there already."""

    records: list[Record]
    schema: Schema | None = None
    name: str = "records"

    def plan(self, position: Position, *, limit: int | None) -> Take | None:
        del position, limit
        return Take(what="all", batches=lambda: iter([to_messages(to_columns(self.records), "orders")]), reached=lambda: Reached({"all": True}))


def test_a_tombstone_is_a_message_whatever_schema_and_mapping_the_others_have(queue: Queue) -> None:
    source = Records([Record(b'{"carrier": "VX"}'), Record(None), Record(b"")], JsonSchema(schema={"type": "object"}))
    result = take(queue.table, source, key="1", clock=queue.clock, mapping=ColumnMapping(group="carrier"))
    assert (result.sent, result.malformed) == (3, 1)
    rows = [row for file in queue.table.snapshot().files for row in queue.table.read(file).to_pylist()]
    found = {(row["sub_queue"], row["body"], row["group_id"], dict(row["properties"]).get("kafka.tombstone")) for row in rows}
    assert found == {("main", b'{"carrier": "VX"}', "VX", None), ("main", b"", None, "true"), ("poison", b"", None, None)}
