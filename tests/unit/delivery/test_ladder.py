"""Ordinary exceptions take a message from delivery to delivery by what the policy says once for all messages with its counts."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.delivery import work
from airflow_poison.delivery.journal import MAX_ATTEMPTS, MessageState
from airflow_poison.delivery.work import Ladder
from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.decisions import Counts, Halt, Park
from airflow_poison.rules.listener_port import ListenerPort
from airflow_poison.rules.msmq4 import Msmq4, Msmq4Receiver
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.failures import Postpone, Unprocessable
from tests.given.messages import batch_of
from tests.given.reading import told
from tests.sessions.conftest import opened_session

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.delivery.session import BatchReport
    from airflow_poison.rules.policy import Policy
    from airflow_poison.values.message import Message

NOW = SystemClock().now()


def raising(message: Message) -> None:
    """Fail as the body says: one word a delivery of this pass."""
    verdict = message.text.split()[message.abort_count :][:1]
    if verdict == ["unprocessable"]:
        raise Unprocessable("never")
    if verdict == ["postpone"]:
        raise Postpone
    if verdict == ["bad"] or message.text == "hopeless":
        raise ValueError("this order can never be processed")


def delivered(policy: Policy, bodies: list[str], folder: Path) -> BatchReport:
    with opened_session(raising, policy=policy, journal_folder=folder, isolation="none") as session:
        return session.deliver(batch_of(list(bodies)))


def move() -> Msmq4:
    return Msmq4(receive_retry_count=3, receive_error_handling="Move")


def test_the_policy_is_asked_once_for_all_messages_that_fail_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    for name in ("before", "after_rollback"):
        real = getattr(Msmq4Receiver, name)

        def counting(self: Msmq4Receiver, *given: Any, _real: Any = real, _name: str = name) -> Any:
            asked[_name] += 1
            return _real(self, *given)

        monkeypatch.setattr(Msmq4Receiver, name, counting)

    report = delivered(move(), ["hopeless"] * 100 + ["bad bad ok"] * 100, tmp_path)

    assert told(report.words) == [(MessageState.ENDED, 4, 0)] * 100 + [(MessageState.COMMITTED, 2, 0)] * 100
    assert asked == {"before": 5, "after_rollback": 4}


def test_an_error_does_not_name_those_of_earlier_deliveries(tmp_path: Path) -> None:
    report = delivered(move(), ["hopeless"], tmp_path)

    assert "raising" in report.failures[0].trace
    assert "then:" not in report.failures[0].trace


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("bad unprocessable", (MessageState.ENDED, 2, 0)),
        ("bad bad postpone", (MessageState.ENDED, 2, 0)),
        ("bad bad bad ok", (MessageState.COMMITTED, 3, 0)),
        ("postpone", (MessageState.ENDED, 0, 0)),
    ],
)
def test_what_is_no_ordinary_exception_goes_on_in_the_receive_loop(tmp_path: Path, body: str, word: tuple[MessageState, int, int]) -> None:
    assert told(delivered(move(), [body, "ok"], tmp_path).words) == [word, (MessageState.COMMITTED, 0, 0)]


def test_lp_2_each_message_halts_the_port_by_its_own_count(tmp_path: Path) -> None:
    policy = ListenerPort(max_retries=2, max_sessions=1)

    report = delivered(policy, ["bad ok", "hopeless", "hopeless"], tmp_path)

    assert told(report.words) == [(MessageState.COMMITTED, 1, 0), (MessageState.HALTED, 2, 0), (MessageState.UNTOUCHED, 0, 0)]
    assert report.halted


def test_a_ladder_says_how_it_ends_only_where_the_counts_do() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backout = ActivationSpecification(
            stop_endpoint_if_delivery_fails=False, backout_threshold=2, backout_requeue_queue="B.Q", max_server_sessions=1
        )
    ends = [Ladder(policy, Counts(), NOW) for policy in (move(), Msmq4(receive_retry_count=3, max_retry_cycles=0), backout)]
    for found in ends:
        while found.rung(attempts := len(found._rungs)) is not None:
            assert attempts < 4

    assert [type(found.end) for found in ends] == [Park, Halt, type(None)]
    assert [len(found._rungs) for found in ends] == [4, 4, 2]


def test_an_endless_ladder_has_as_many_rungs_as_a_word_can_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_ATTEMPTS", 10)
    endless = Ladder(Msmq4(receive_retry_count=2**31 - 1), Counts(3, 2), NOW)

    assert [rung.seen.abort_count for attempts in range(10) if (rung := endless.rung(attempts))] == [*range(3, 13)]
    assert endless.rung(10) is None
    assert endless.end is None
    assert MAX_ATTEMPTS > 10
