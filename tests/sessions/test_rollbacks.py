"""A handler that raises costs rollbacks of its own message; nothing that it raises can hurt the session."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_poison.delivery.handler_wrappers import sessiongram
from airflow_poison.delivery.journal import MessageState
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.values.errors import HandlerNotFoundError, InputError
from airflow_poison.values.failures import FailureKind
from tests.given.messages import batch_of
from tests.given.reading import COMMITTED, UNTOUCHED, told
from tests.sessions.conftest import policy

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.rules.policy import Policy
    from airflow_poison.values.message import Message
    from tests.sessions.conftest import Opener


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ("raise", "ValueError", "bad 1"),
        ("sys.exit", "SystemExit", "3"),
        ("interrupt", "KeyboardInterrupt", ""),
        ("unprintable", "tests.sessions.sample_handlers.UnprintableError", "(the exception's text cannot be made: its __str__ and __repr__ raise)"),
        ("unpicklable", "tests.sessions.sample_handlers.UnpicklableError", "holds a lambda"),
        ("surrogate", "ValueError", "bad ? text"),
    ],
)
def test_what_a_handler_raises_is_a_counted_rollback_of_its_message_alone(session: Opener, isolation: str, body: str, kind: str, text: str) -> None:
    report = session(isolation=isolation).deliver(batch_of(["ok", body, "ok"]))

    assert told(report.words) == [COMMITTED, (MessageState.ENDED, 3, 0), COMMITTED]
    assert (report.failures[1].kind, report.failures[1].type, report.failures[1].text) == (FailureKind.EXCEPTION, kind, text)
    assert "sample_handlers.py" in report.failures[1].trace


@pytest.mark.parametrize("name", ["returns_generator", "returns_async_generator", "returns_coroutine", "returns_awaitable"])
@pytest.mark.parametrize("system", [policy(), ServiceBroker()])
def test_a_handler_that_returns_work_instead_of_doing_it_settles_nothing(
    session: Opener, isolation: str, name: str, system: Policy, tmp_path: Path
) -> None:
    report = session(f"tests.sessions.sample_handlers:{name}", isolation, policy=system).deliver(batch_of([str(tmp_path / "ran")]))

    assert told(report.words) == [(MessageState.HALTED, 5, 0) if isinstance(system, ServiceBroker) else (MessageState.ENDED, 3, 0)]
    assert (report.failures[0].kind, report.failures[0].type) == (FailureKind.EXCEPTION, "airflow_poison.values.errors.HandlerNotRunError")
    assert not (tmp_path / "ran").exists()


def test_a_decorator_that_does_the_work_of_a_generator_settles_its_message(session: Opener, isolation: str, tmp_path: Path) -> None:
    report = session("tests.sessions.sample_handlers:runs_it", isolation).deliver(batch_of([str(tmp_path / "ran")]))

    assert told(report.words) == [COMMITTED]
    assert (tmp_path / "ran").exists()


def test_texts_of_fifty_megabytes_are_cut(session: Opener, isolation: str) -> None:
    report = session(isolation=isolation, policy=policy(receive_retry_count=0)).deliver(batch_of(["huge"]))

    assert len(report.failures[0].text) == 4_096
    assert len(report.failures[0].trace) <= 8_192


def test_a_retry_that_succeeds_commits_with_its_attempts(session: Opener, isolation: str) -> None:
    report = session(isolation=isolation).deliver(batch_of(["raise-until 2", "ok"]))

    assert told(report.words) == [(MessageState.COMMITTED, 2, 0), COMMITTED]
    assert report.failures == {}


def test_counts_of_earlier_passes_go_on(session: Opener, isolation: str) -> None:
    report = session(isolation=isolation).deliver(batch_of(["raise"], abort_count=2))

    assert told(report.words) == [(MessageState.ENDED, 1, 0)]


def test_unprocessable_ends_at_once_and_postpone_counts_nothing(session: Opener, isolation: str) -> None:
    opened = session(isolation=isolation, unprocessable=("builtins:LookupError",))

    report = opened.deliver(batch_of(["unprocessable", "lookup", "postpone"]))

    assert told(report.words) == [(MessageState.ENDED, 1, 0), (MessageState.ENDED, 1, 0), (MessageState.ENDED, 0, 0)]
    assert [report.failures[row].kind for row in range(3)] == [FailureKind.UNPROCESSABLE, FailureKind.UNPROCESSABLE, FailureKind.POSTPONED]
    assert report.failures[2].delay == timedelta(minutes=5)


def test_unreadable_messages_never_reach_the_handler(session: Opener, isolation: str) -> None:
    report = session(isolation=isolation, policy=policy(max_received_message_size=4)).deliver(batch_of(["ok", "raise", "ok"]))

    assert told(report.words) == [COMMITTED, (MessageState.ENDED, 0, 0), COMMITTED]
    assert report.failures[1].kind is FailureKind.UNREADABLE


def test_null_bodies_are_empty_and_empty_batches_are_nothing(session: Opener, isolation: str) -> None:
    opened = session(isolation=isolation)

    assert told(opened.deliver(batch_of([None, b"", None])).words) == [COMMITTED] * 3
    assert told(opened.deliver(batch_of([])).words) == []


def test_a_hundred_thousand_messages(session: Opener, isolation: str) -> None:
    bodies: list[bytes | str | None] = ["ok"] * 100_000
    bodies[77_777] = "raise"

    report = session(isolation=isolation).deliver(batch_of(bodies))

    assert [row for row, word in enumerate(report.words.tolist()) if word != MessageState.COMMITTED] == [77_777]


def test_fault_halts_the_endpoint_and_leaves_the_rest_untouched(session: Opener, isolation: str) -> None:
    opened = session(isolation=isolation, policy=policy(receive_error_handling="Fault"))

    first, second = opened.deliver(batch_of(["ok", "raise", "ok"])), opened.deliver(batch_of(["ok"], first_id=3))

    assert told(first.words) == [COMMITTED, (MessageState.HALTED, 3, 0), UNTOUCHED]
    assert (first.halted, second.halted, told(second.words)) == (True, True, [UNTOUCHED])


def test_an_at_most_once_message_is_committed_whatever_its_handler_does(session: Opener, isolation: str) -> None:
    with pytest.warns(UserWarning, match="exactly_once"):
        lossy = policy(exactly_once=False)

    assert told(session(isolation=isolation, policy=lossy).deliver(batch_of(["raise", "ok"])).words) == [COMMITTED] * 2


def test_messages_without_a_lookup_id_are_refused(session: Opener, isolation: str) -> None:
    batch = batch_of(["ok"])
    nameless = batch.set_column(0, batch.schema.field(0), batch.column("crash_count").cast("int64"))

    with pytest.raises(InputError, match="1 of 1 messages have no lookup id"):
        session(isolation=isolation).deliver(nameless)


@pytest.mark.parametrize("name", ["tests.sessions.nowhere:land", "tests.sessions.sample_handlers:nowhere", "no colon"])
def test_a_handler_that_does_not_exist_is_found_out_at_the_opening(session: Opener, isolation: str, name: str) -> None:
    with pytest.raises(HandlerNotFoundError, match=name):
        session(name, isolation)


def test_what_a_handler_logs_and_prints_reaches_the_log_with_its_message(session: Opener, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "airflow_poison.handler"):
        session().deliver(batch_of(["print", "log", "os.write", "ok"], first_id=40))

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "[message 40] printed by 40"),
        ("ERROR", "[message 41] shop: logged by 41"),
        ("INFO", "[message 42] raw"),
    ]


def test_a_flood_of_output_neither_blocks_nor_fills_the_log(session: Opener, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "airflow_poison.handler"):
        report = session(policy=policy(transaction_timeout=timedelta(seconds=20))).deliver(batch_of(["flood 10", "print"]))

    assert told(report.words) == [COMMITTED] * 2
    assert sum(len(record.getMessage()) for record in caplog.records) < 2_200_000
    assert "more lines of the handler's output were cut" in caplog.records[-1].getMessage()


def test_wcf_38_a_session_is_rolled_back_as_a_whole(session: Opener, isolation: str) -> None:
    opened = session("tests.sessions.sample_handlers:take_all", isolation, policy=policy(sessions=True))

    report = opened.deliver(batch_of([sessiongram([b"a", b"b"]), sessiongram([b"a", b"bad", b"c"]), b"no gram"]))

    assert told(report.words) == [COMMITTED, (MessageState.ENDED, 3, 0), (MessageState.ENDED, 3, 0)]
    assert report.failures[1].text == "bad item"


def test_wcf_39_a_session_that_is_not_consumed_is_rolled_back(session: Opener, isolation: str) -> None:
    report = session("tests.sessions.sample_handlers:take_one", isolation, policy=policy(sessions=True)).deliver(
        batch_of([sessiongram([b"a", b"b"])])
    )

    assert told(report.words) == [(MessageState.ENDED, 3, 0)]
    assert report.failures[0].type.endswith("SessionNotConsumed")


def test_a_closure_runs_in_the_child(session: Opener) -> None:
    wanted = "fine"

    def handler(message: Message) -> None:
        if message.text != wanted:
            raise ValueError(message.text)

    assert told(session(handler).deliver(batch_of(["fine", "bad"])).words) == [COMMITTED, (MessageState.ENDED, 3, 0)]
