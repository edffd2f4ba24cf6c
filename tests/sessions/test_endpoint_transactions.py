"""Transactions of an endpoint: batches (spec WCF-40 to WCF-43), delivery at most once (spec WCF-12, WCF-37), very many attempts, full disks."""

from __future__ import annotations

import errno
import logging
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.delivery import platform
from airflow_poison.delivery.journal import MAX_ATTEMPTS, MessageState
from airflow_poison.delivery.settlement import Stay
from airflow_poison.rules.decisions import Park
from airflow_poison.rules.msmq3 import Msmq3
from airflow_poison.values.errors import ConfigurationWarning, ServerSessionError
from airflow_poison.values.failures import FailureKind
from tests.given.endpoints import deliveries, in_groups, saying, specification, written
from tests.given.messages import batch_of
from tests.given.reading import COMMITTED, UNTOUCHED, told
from tests.sessions.conftest import policy as msmq4

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.rules.msmq4 import Msmq4
    from tests.sessions.conftest import Opener

RECORDED = "tests.sessions.endpoint_handlers:recorded"
SCRIPT = "tests.sessions.sample_handlers:script"


def batching(size: int = 3, **settings: Any) -> Msmq4:
    return msmq4(max_batch_size=size, **{"transaction_timeout": timedelta(seconds=30)} | settings)


def test_wcf_40_one_failure_returns_the_whole_batch_and_then_messages_come_alone(session: Opener, isolation: str, tmp_path: Path) -> None:
    report = session(RECORDED, isolation, policy=batching()).deliver(batch_of(saying(tmp_path, "ok", "ok", "raise-once", "ok")))

    assert written(tmp_path) == [0, 1, 2, 0, 1, 2, 3]
    assert told(report.words) == [(MessageState.COMMITTED, 1, 0)] * 3 + [COMMITTED]


def test_wcf_42_after_twice_the_batch_size_of_commits_batches_are_back(session: Opener, isolation: str, tmp_path: Path) -> None:
    """Message 0 fails in a batch of two: four commits alone follow. Then message 5 takes message 4 with it."""
    bodies = saying(tmp_path, "raise-once", "ok", "ok", "ok", "ok", "raise-once")

    report = session(RECORDED, isolation, policy=batching(2)).deliver(batch_of(bodies))

    assert written(tmp_path) == [0, 0, 1, 2, 3, 4, 5, 4, 5]
    assert [attempts for _, attempts, _ in told(report.words)] == [1, 0, 0, 0, 1, 1]


def test_wcf_43_without_retries_the_innocents_of_a_batch_are_poison_too(session: Opener, isolation: str, tmp_path: Path) -> None:
    with pytest.warns(ConfigurationWarning, match="its whole batch poison"):
        policy = batching(receive_retry_count=0, max_retry_cycles=1)

    report = session(RECORDED, isolation, policy=policy).deliver(batch_of(saying(tmp_path, "ok", "raise", "ok")))

    assert told(report.words) == [(MessageState.ENDED, 1, 0), (MessageState.ENDED, 1, 0), COMMITTED]
    assert report.decided is not None
    assert [type(report.decided.ends[row]) for row in (0, 1)] == [Park, Park]


@pytest.mark.long
def test_wcf_42_the_timeout_is_that_of_the_transaction_not_of_each_message(session: Opener, tmp_path: Path) -> None:
    """The first message takes half of 1.5 s, and the second has the other half; alone it has enough."""
    policy = batching(2, transaction_timeout=timedelta(seconds=1.5), receive_retry_count=1)

    opened = session(RECORDED, policy=policy)
    opened.deliver(batch_of(saying(tmp_path, "ok"), first_id=9))
    report = opened.deliver(batch_of(saying(tmp_path, "sleep 0.75", "sleep 1.0")))

    assert written(tmp_path) == [9, 0, 1, 0, 1]
    assert told(report.words) == [(MessageState.COMMITTED, 1, 0), (MessageState.COMMITTED, 1, 1)]
    assert report.timeouts == 1


@pytest.mark.long
def test_wcf_42_a_batch_commits_when_most_of_its_time_is_over(session: Opener, tmp_path: Path) -> None:
    policy = batching(3, transaction_timeout=timedelta(seconds=2))

    opened = session(RECORDED, policy=policy)
    opened.deliver(batch_of(saying(tmp_path, "ok"), first_id=9))
    report = opened.deliver(batch_of(saying(tmp_path, "sleep 1.65", "sleep 1.65", "ok")))

    assert told(report.words) == [COMMITTED] * 3
    assert written(tmp_path) == [9, 0, 1, 2]


def lossy_policies() -> list[Any]:
    with pytest.warns(ConfigurationWarning):
        return [
            pytest.param(Msmq3(exactly_once=False, transaction_timeout=timedelta(seconds=1)), id="WCF-12"),
            pytest.param(Msmq3(transaction_scope_required=False, transaction_timeout=timedelta(seconds=1)), id="WCF-37"),
            pytest.param(batching(transaction_scope_required=False, transaction_timeout=timedelta(seconds=1)), id="WCF-37 in batches"),
        ]


@pytest.mark.parametrize("policy", lossy_policies())
@pytest.mark.parametrize("word", ["raise", "exit", "kill", "hang"])
def test_a_message_at_most_once_is_delivered_once_whatever_its_handler_does(session: Opener, tmp_path: Path, policy: Any, word: str) -> None:
    report = session(RECORDED, policy=policy).deliver(batch_of(saying(tmp_path, "ok", word, "ok", "unprocessable", "postpone")))

    assert [state for state, *_ in told(report.words)] == [MessageState.COMMITTED] * 5
    assert deliveries(tmp_path) == Counter(range(5))
    assert report.failures == {}


@pytest.mark.parametrize("policy", lossy_policies())
def test_inline_a_message_at_most_once_is_delivered_once(session: Opener, tmp_path: Path, policy: Any) -> None:
    report = session(RECORDED, "none", policy=policy).deliver(batch_of(saying(tmp_path, "ok", "raise", "postpone")))

    assert told(report.words) == [COMMITTED] * 3
    assert deliveries(tmp_path) == Counter(range(3))


def test_a_message_is_left_for_the_next_pass_when_its_word_can_count_no_further(session: Opener, isolation: str) -> None:
    report = session(SCRIPT, isolation, policy=specification(1, backout_threshold=0)).deliver(batch_of(["raise", "ok", "raise-until 4090"]))

    assert told(report.words) == [(MessageState.UNTOUCHED, MAX_ATTEMPTS, 0), COMMITTED, (MessageState.COMMITTED, 4_090, 0)]
    assert report.decided is not None
    end = report.decided.ends[0]
    assert isinstance(end, Stay)
    assert end.counts.abort_count == MAX_ATTEMPTS


def test_so_is_it_with_several_sessions_and_groups(session: Opener) -> None:
    from tests.given.endpoints import broker

    report = session(SCRIPT, "none", policy=broker(2, rollback_limit=1_000_000)).deliver(in_groups("aab", ["raise", "ok", "ok"]))

    assert told(report.words) == [(MessageState.UNTOUCHED, MAX_ATTEMPTS, 0), COMMITTED, COMMITTED]


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_without_room_for_its_journal_nothing_of_a_batch_is_delivered(
    session: Opener, isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = session(RECORDED, isolation, policy=specification(2))
    monkeypatch.setattr(platform, "reserve", full)

    with pytest.raises(ServerSessionError, match=r"cannot grow: the disk is full"):
        opened.deliver(batch_of(saying(tmp_path, "ok")))

    assert written(tmp_path) == []


def test_without_room_for_a_failures_text_its_rollback_is_counted_by_the_next_try(
    session: Opener, isolation: str, journals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_poison.delivery.recovered import read_journals

    opened = session(RECORDED, isolation, policy=specification(1))
    monkeypatch.setattr(platform, "write_all", full)

    with pytest.raises(ServerSessionError, match=r"message 1 cannot be written: the disk is full \(.+\)\. .* free some space"):
        opened.deliver(batch_of(saying(tmp_path, "ok", "raise", "ok")))
    opened.close()

    assert told(read_journals([journals]).words) == [COMMITTED, (MessageState.CRASHED, 1, 1), UNTOUCHED]


def test_what_the_others_do_is_finished_when_a_session_cannot_be_started(
    session: Opener, journals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_poison.delivery import zygote
    from airflow_poison.delivery.recovered import read_journals

    opened = session(RECORDED, policy=specification(3))
    start, started = zygote.start_child, list[int]()

    def start_two(*descriptors: int) -> zygote.ChildProcess:
        if len(started) == 2:
            raise ServerSessionError("no process can be forked")
        started.append(len(started))
        return start(*descriptors)

    monkeypatch.setattr(zygote, "start_child", start_two)
    with pytest.raises(ServerSessionError, match="forked"):
        opened.deliver(batch_of(saying(tmp_path, "sleep 0.3", "raise-once", "ok")))
    opened.close()

    assert told(read_journals([journals]).words) == [COMMITTED, (MessageState.UNTOUCHED, 1, 0), UNTOUCHED]
    assert deliveries(tmp_path) == Counter([0, 1])


def test_what_handlers_of_several_sessions_print_and_log_has_the_message_they_had(
    session: Opener, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    opened = session(RECORDED, policy=specification(2))
    with caplog.at_level(logging.INFO, "airflow_poison.handler"):
        opened.deliver(batch_of(saying(tmp_path, "print", "log", "os.write", "ok"), first_id=40))

    assert sorted((record.levelname, record.getMessage()) for record in caplog.records) == [
        ("ERROR", "[message 41] shop: logged by 41"),
        ("INFO", "[message 40] printed by 40"),
        ("INFO", "[message 42] raw"),
    ]


def test_a_line_without_an_end_is_told_when_its_batch_is_over(session: Opener, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    opened = session(RECORDED, policy=specification(1))
    with caplog.at_level(logging.INFO, "airflow_poison.handler"):
        opened.deliver(batch_of(saying(tmp_path, "no-newline"), first_id=7))
        opened.deliver(batch_of(saying(tmp_path, "no-newline"), first_id=8))
        opened.close()

    assert [record.getMessage() for record in caplog.records] == ["[message 7] said", "[message 8] said"]


def test_so_is_what_was_cut(session: Opener, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    opened = session(RECORDED, policy=specification(1, transaction_timeout=timedelta(seconds=20)))
    with caplog.at_level(logging.INFO, "airflow_poison.handler"):
        opened.deliver(batch_of(saying(tmp_path, "flood 4"), first_id=7))
        opened.close()

    texts = [record.getMessage() for record in caplog.records]
    caplog.clear()
    assert "3 more lines of the handler's output were cut" in texts[-1]
    assert sum(map(len, texts)) < 2_200_000


def test_a_long_batch_is_not_converted_before_its_first_delivery(session: Opener) -> None:
    """A session that met a swept batch of a hundred thousand messages once converted all of it within the first one's transaction."""
    import pyarrow as pa

    number = 60_000
    batch = batch_of(["ok"] * number)
    names = batch.schema.names
    properties: Any = pa.array([[("kind", "order"), ("source", "shop")]] * number, batch.schema.field("properties").type)
    batch = batch.set_column(names.index("properties"), batch.schema.field("properties"), properties)
    opened = session(
        "tests.sessions.endpoint_handlers:read_properties", policy=specification(1, failures=1, transaction_timeout=timedelta(seconds=30))
    )
    opened.deliver(batch.slice(0, 1))

    began = time.monotonic()
    report = opened.deliver(batch.slice(1))

    assert told(report.words[:2]) == [(MessageState.HALTED, 1, 0), UNTOUCHED]
    assert report.failures[0].kind is FailureKind.EXCEPTION
    assert float(report.failures[0].text) < 0.05
    assert time.monotonic() - began < 20
