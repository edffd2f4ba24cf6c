"""What is wrong with an argument of a verb is said by name, and nothing is done; natural forms of a value are taken for what they mean."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest

from airflow_poison import Msmq4
from airflow_poison.queue import Queue, Store
from airflow_poison.values.errors import InputError, SettingError
from airflow_poison.values.events import EventType

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")


def _fail(message: object) -> None:
    raise LookupError("no such plane")


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Queue:
    """A queue with three messages in poison, which no test changes."""
    queue = Store(str(tmp_path_factory.mktemp("store"))).declare("orders", POLICY)
    queue.send(["a", "b", "c"])
    queue.receive(_fail)
    return queue


@pytest.mark.parametrize("wrong", ["5", 5.5, -1, True, [], float("nan")])
@pytest.mark.parametrize(
    "verb",
    [
        lambda queue, value: queue.find(limit=value),
        lambda queue, value: queue.find(offset=value),
        lambda queue, value: queue.groups(limit=value),
        lambda queue, value: queue.history(limit=value),
        lambda queue, value: queue.query("select 1", limit=value),
        lambda queue, value: queue.plan(limit=value),
        lambda queue, value: queue.record(rate=value),
        lambda queue, value: queue.record(chunk=value),
        lambda queue, value: queue.maintain(min_files=value),
    ],
)
def test_what_is_no_whole_number_is_refused(poisoned: Queue, verb: Callable[[Queue, Any], object], wrong: object) -> None:
    with pytest.raises(SettingError, match="a whole number"):
        verb(poisoned, wrong)
    assert poisoned.plans() == ()


@pytest.mark.parametrize("wrong", [5, "1,2", [None], ["1"], [[1]], [1.5], [True]])
@pytest.mark.parametrize(
    "verb",
    [lambda queue, ids: queue.history(lookup_ids=ids), lambda queue, ids: queue.take_out_rows(ids), lambda queue, ids: queue.put_back(ids)],
)
def test_what_are_no_lookup_ids_is_refused(poisoned: Queue, verb: Callable[[Queue, Any], object], wrong: object) -> None:
    with pytest.raises(SettingError, match="a list of whole numbers"):
        verb(poisoned, wrong)


@pytest.mark.parametrize("since", [datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC), date(2020, 1, 1), "2020-01-01"])  # noqa: DTZ001
def test_an_instant_without_an_offset_is_utc(poisoned: Queue, since: Any) -> None:
    assert [group.new for group in poisoned.groups(since=since).groups] == [True]
    assert poisoned.history(since=since).events == poisoned.history().events
    assert poisoned.find({"since": since}).total == 3


@pytest.mark.parametrize("since", [5, "yesterday", object()])
def test_what_is_no_instant_is_refused(poisoned: Queue, since: Any) -> None:
    for verb in (lambda: poisoned.groups(since=since), lambda: poisoned.history(since=since)):
        with pytest.raises(SettingError, match="an instant in ISO 8601"):
            verb()


def test_types_of_events_may_be_their_names(poisoned: Queue) -> None:
    [event] = {event.type for event in poisoned.history(types=["POISON_EXCEPTION"]).events}  # type: ignore[list-item]
    assert event is EventType.POISON_EXCEPTION
    with pytest.raises(SettingError, match="types='nothing'"):
        poisoned.history(types=["nothing"])  # type: ignore[list-item]


@pytest.mark.parametrize("wrong", [5, b"x", [], "", " ", "\ud800"])
def test_a_key_that_names_nothing_is_refused(poisoned: Queue, wrong: Any) -> None:
    for verb in (lambda: poisoned.send(["d"], key=wrong), lambda: poisoned.receive(_fail, key=wrong)):
        with pytest.raises(SettingError, match="key="):
            verb()
    assert poisoned.find({"sub_queue": ""}).total == 3


@pytest.mark.parametrize("retention", [5, "yesterday", timedelta(-1), None.__class__])
def test_what_is_no_duration_is_refused(poisoned: Queue, retention: Any) -> None:
    with pytest.raises(SettingError, match="retention"):
        poisoned.maintain(retention)


@pytest.mark.parametrize("wrong", [None, 5, str, len, object(), pl.LazyFrame({"a": [1]})])
def test_what_are_no_messages_is_refused(poisoned: Queue, wrong: Any) -> None:
    with pytest.raises(InputError, match=r"messages=.*expected a list of messages, or a data frame"):
        poisoned.send(wrong)


def test_a_mapping_of_another_type_is_refused(poisoned: Queue) -> None:
    with pytest.raises(InputError, match="expected a ColumnMapping"):
        poisoned.send([{"a": "x"}], mapping={"body": "a"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "frames",
    [
        lambda: (pa.record_batch({"a": [number]}) for number in (1, 2)),
        lambda: [pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [2]})],
        lambda: [pl.DataFrame({"a": [1]}), pa.table({"a": [2]})],
        lambda: [pa.table({"a": [1, 2]})],
    ],
)
def test_several_data_frames_are_sent_one_after_the_other(frames: Callable[[], Any], tmp_path: Path) -> None:
    queue = Store(str(tmp_path)).declare("orders", POLICY)
    assert queue.send(frames()).sent == 2
    assert queue.query("select text from messages order by lookup_id")["text"].to_pylist() == ['{"a":1}', '{"a":2}']


def test_what_comes_between_data_frames_is_refused(poisoned: Queue) -> None:
    with pytest.raises(InputError, match=r"messages\[1\] is dict; expected a data frame, as the first one is"):
        poisoned.send([pa.table({"a": [1]}), {"a": 2}])
    assert poisoned.find({"sub_queue": ""}).total == 3


@pytest.mark.parametrize(
    ("verb", "named"),
    [
        (lambda queue: queue.conversation(5), "conversation=5 is not allowed; allowed: text"),
        (lambda queue: queue.inspect(conversation_id=5), "conversation_id=5 is not allowed; allowed: text"),
        (lambda queue: queue.remove_conversation(b"x"), "conversation_id=b'x' is not allowed; allowed: text"),
        (lambda queue: queue.groups(search=5), "search=5 is not allowed; allowed: text"),
        (lambda queue: queue.groups(descending="no"), "descending='no' is not allowed; allowed: True or False"),
        (lambda queue: queue.alter({5: 5}), "a dict of settings by their names"),
        (lambda queue: queue.return_due("x"), "policy='x' is not allowed; allowed: a policy of airflow_poison"),
        (lambda queue: queue.apply("plan", patience=5), "patience=5 is not allowed; allowed: a timedelta"),
        (lambda queue: queue.apply("plan", stop=5), "stop=5 is not allowed; allowed: a function"),
        (lambda queue: queue.remove(1, reason=b"x"), "reason=b'x' is not allowed; allowed: text"),
        (lambda queue: queue.move([1], []), r"target=\[\] is not allowed; allowed: text"),
        (lambda queue: queue.receive(_fail, unprocessable=5), "unprocessable=5 is not allowed; allowed: a list of exception types"),
        (lambda queue: queue.receive(_fail, services=5), "services=5 is not allowed; allowed: a list of services"),
        (lambda queue: queue.declare(services=5), "services=5 is not allowed; allowed: a list"),
        (lambda queue: queue.history(types=5), "types=5 is not allowed; allowed: a list"),
        (lambda queue: queue.planned(version=-1), "version=-1 is not allowed; allowed: a whole number from 0"),
        (lambda queue: queue.receive_frame([1], key="k"), r"frame=\[1\] is not allowed; allowed: a DataFrame"),
        (lambda queue: queue.send_to_kafka([1], "topic", key="k"), "kafka='topic' is not allowed; allowed: a Kafka"),
    ],
)
def test_an_argument_that_is_plainly_none_is_refused_by_name(poisoned: Queue, verb: Callable[[Any], object], named: str) -> None:
    version = poisoned.reading.snapshot().version
    with pytest.raises(SettingError, match=named):
        verb(poisoned)
    assert poisoned.reading.snapshot().version == version
