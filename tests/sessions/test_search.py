"""Batches in real sessions: whatever makes them fail, exactly the culprits are charged, each with its own error."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_poison.delivery.handlers import Batching
from airflow_poison.delivery.journal import MessageState
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.values.failures import FailureKind
from tests.given.examples import examples
from tests.given.messages import batch_of
from tests.given.reading import COMMITTED, UNTOUCHED, told
from tests.sessions.conftest import policy

if TYPE_CHECKING:
    from airflow_poison.delivery.session import BatchReport
    from tests.sessions.conftest import Opener

HANDLER = "tests.sessions.frame_handlers:script"
ARROW = Batching("arrow")
GIVEN_UP = (MessageState.ENDED, 3, 0)
DIED = (MessageState.ENDED, 3, 3)
FATES = {
    "raise": GIVEN_UP,
    "named": GIVEN_UP,
    "kill": DIED,
    "hang": DIED,
    "heals 1": (MessageState.COMMITTED, 1, 0),
    "heals 2": (MessageState.COMMITTED, 2, 0),
    "heals-dead 1": (MessageState.COMMITTED, 1, 1),
    "unprocessable": (MessageState.ENDED, 1, 0),
    "postpone": (MessageState.ENDED, 0, 0),
    "crowd 1": COMMITTED,
}
HARMLESS = [word for word in FATES if word not in {"kill", "hang", "heals-dead 1"}]
QUICK = timedelta(milliseconds=700)


def bodies(messages: int, culprits: dict[int, str]) -> list[bytes | str | None]:
    return [culprits.get(row, "ok") for row in range(messages)]


def check(report: BatchReport, messages: int, culprits: dict[int, str]) -> None:
    assert {row: word for row, word in enumerate(told(report.words)) if word != COMMITTED} == {
        row: FATES[word] for row, word in culprits.items() if FATES[word] != COMMITTED
    }
    for row, word in culprits.items():
        failure = report.failures.get(row)
        if FATES[word][0] is MessageState.ENDED:
            assert failure is not None
            texts = {"raise": f"bad {row}", "named": f"bad {row}", "unprocessable": f"never {row}"}
            assert texts.get(word, "") in failure.text
            kinds = {"kill": FailureKind.CRASH, "hang": FailureKind.TIMEOUT, "unprocessable": FailureKind.UNPROCESSABLE}
            assert failure.kind is kinds.get(word, FailureKind.POSTPONED if word == "postpone" else FailureKind.EXCEPTION)
        else:
            assert failure is None
    assert len(report.words) == messages


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 700), st.dictionaries(st.integers(0, 699), st.sampled_from(HARMLESS), max_size=12), st.sampled_from([1, 2, 100, 333, 10_000]))
@example(700, dict.fromkeys(range(700), "raise"), 10_000)
@example(300, dict.fromkeys(range(300), "named"), 10_000)
@example(700, {0: "raise", 699: "named", 350: "unprocessable"}, 10_000)
def test_inline_exactly_the_culprits_are_charged(session: Opener, messages: int, culprits: dict[int, str], size: int) -> None:
    culprits = {row: word for row, word in culprits.items() if row < messages}
    report = session(HANDLER, "none", batching=Batching("arrow", size)).deliver(batch_of(bodies(messages, culprits)))
    check(report, messages, culprits)


@pytest.mark.parametrize(
    "culprits",
    [
        {3: "kill"},
        {0: "kill", 449: "raise", 1: "named", 200: "heals-dead 1"},
        {17: "hang", 300: "postpone"},
        {5: "crowd 1", 6: "unprocessable"},
    ],
)
def test_in_child_processes_exactly_the_culprits_are_charged(session: Opener, culprits: dict[int, str]) -> None:
    report = session(HANDLER, policy=policy(transaction_timeout=QUICK), batching=ARROW).deliver(batch_of(bodies(450, culprits)))
    check(report, 450, culprits)


def test_three_killers_in_ten_thousand_cost_few_deaths(session: Opener) -> None:
    culprits = {17: "kill", 5_000: "kill", 9_999: "kill"}
    report = session(HANDLER, policy=policy(receive_retry_count=0), batching=ARROW).deliver(batch_of(bodies(10_000, culprits)))

    assert {row for row, word in enumerate(told(report.words)) if word == (MessageState.ENDED, 1, 1)} == set(culprits)
    assert report.crashes == 3
    assert report.restarts <= 1 + 2 * 3


def test_what_a_search_costs_is_told(session: Opener) -> None:
    report = session(HANDLER, "none", batching=ARROW).deliver(batch_of(bodies(10_000, {4_321: "raise"})))

    assert 100 <= report.searched.probes <= 115
    assert 20_000 <= report.searched.rows_handed <= 20_300
    assert report.searched.unstable == ()


def test_rows_that_are_named_cost_two_calls_for_each_attempt(session: Opener) -> None:
    report = session(HANDLER, "none", batching=ARROW).deliver(batch_of(bodies(1_000, dict.fromkeys(range(0, 1_000, 10), "named"))))

    assert (report.searched.probes, report.searched.rows_handed) == (0, 1_000 + 900 + 2 * 100)


def test_a_batch_whose_parts_succeed_is_unstable_and_nobody_is_charged(session: Opener, isolation: str) -> None:
    report = session(HANDLER, isolation, batching=ARROW).deliver(batch_of(bodies(300, {7: "crowd 200"}), first_id=1_000))

    assert told(report.words) == [COMMITTED] * 300
    assert report.searched.unstable == ({"messages": "300", "first": "1000", "last": "1299", "error": "MemoryError: 300 are too many"},)


def test_a_batch_that_dies_and_whose_parts_do_not_is_unstable(session: Opener) -> None:
    report = session(HANDLER, batching=ARROW).deliver(batch_of(bodies(300, {7: "crowd-dies 200"})))

    assert told(report.words) == [COMMITTED] * 300
    assert [each["messages"] for each in report.searched.unstable] == ["300"]
    assert (report.restarts, report.crashes) == (1, 0)


@pytest.mark.parametrize("word", ["raise", "named", "kill"])
def test_nothing_behind_a_message_that_halts_the_endpoint_is_delivered(session: Opener, word: str) -> None:
    rules = Msmq4(receive_retry_count=1, max_retry_cycles=0, receive_error_handling="Fault", transaction_timeout=timedelta(seconds=60))
    report = session(HANDLER, policy=rules, batching=ARROW).deliver(batch_of(bodies(500, {123: word, 300: "raise"})))

    crashes = 2 if word == "kill" else 0
    assert told(report.words) == [COMMITTED] * 123 + [(MessageState.HALTED, 2, crashes)] + [UNTOUCHED] * 376
    assert report.halted
