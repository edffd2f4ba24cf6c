"""Systems that compare a message's count after its rollback do so also when the rollback was the end of the process."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_poison.delivery.journal import MessageState
from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.rules.listener_port import ListenerPort
from tests.given.messages import batch_of
from tests.given.reading import COMMITTED, UNTOUCHED, told

if TYPE_CHECKING:
    from tests.sessions.conftest import Opener

QUICK = timedelta(milliseconds=300)


@pytest.mark.parametrize("body", ["exit", "kill", "hang"])
@pytest.mark.parametrize("max_sessions", [1, 2])
def test_lp_2_a_port_stops_at_the_retry_that_ended_its_process(session: Opener, body: str, max_sessions: int) -> None:
    port = ListenerPort(max_retries=2, max_sessions=max_sessions, transaction_timeout=QUICK)

    report = session(policy=port).deliver(batch_of(["ok", body]))

    assert told(report.words) == [COMMITTED, (MessageState.HALTED, 2, 2)]
    assert report.halted


def test_lp_2_behind_such_a_stop_nothing_is_received(session: Opener) -> None:
    opened = session(policy=ListenerPort(max_retries=1))

    first, second = opened.deliver(batch_of(["exit", "ok"])), opened.deliver(batch_of(["ok"], first_id=2))

    assert told(first.words) == [(MessageState.HALTED, 1, 1), UNTOUCHED]
    assert told(second.words) == [UNTOUCHED]


@pytest.mark.parametrize("body", ["exit", "hang"])
@pytest.mark.parametrize("failures_that_stop", [0, 20])
def test_dmp_7_the_last_delivery_sends_a_message_away_though_it_ended_its_process(session: Opener, body: str, failures_that_stop: int) -> None:
    policy = DefaultMessaging(max_failed_deliveries=3, auto_stop_sequential_message_failure=failures_that_stop, transaction_timeout=QUICK)

    report = session(policy=policy).deliver(batch_of(["ok", body, "ok"]))

    assert told(report.words) == [COMMITTED, (MessageState.ENDED, 3, 3), COMMITTED]


def test_dmp_7_the_count_of_earlier_passes_is_compared_with_it(session: Opener) -> None:
    report = session(policy=DefaultMessaging(max_failed_deliveries=3)).deliver(batch_of(["exit"], abort_count=2))

    assert told(report.words) == [(MessageState.ENDED, 1, 1)]
