"""How a message that was journaled leaves its pass, where each decision depends on the message alone."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_poison.delivery.journal import MessageState
from airflow_poison.delivery.rows import BatchEntry
from airflow_poison.delivery.settlement import Stay, end_of
from airflow_poison.rules.decisions import Counts, Dispose, Halt, Halted
from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.rules.listener_port import ListenerPort
from airflow_poison.values.failures import Failure, FailureKind

NOW = datetime(2013, 1, 1, tzinfo=UTC)
CRASH = Failure(FailureKind.CRASH, "exit code 3")


def entry(abort_count: int = 0) -> BatchEntry:
    return BatchEntry(0, 1, 10, None, Counts(abort_count))


def test_lp_2_the_message_that_stopped_its_port_tells_of_it() -> None:
    end = end_of(ListenerPort(max_retries=2).open(), entry(), 2, MessageState.HALTED, CRASH, now=NOW)

    assert isinstance(end, Halt)
    assert (end.how, end.counts, end.details["code"]) == (Halted.STOPPED, Counts(2), "WMSG0036E")


def test_lp_2_the_count_is_that_of_its_last_rollback_though_an_earlier_one_had_reached_the_limit() -> None:
    """A first pass was killed with the message in flight, whose rollback reached the limit and stopped nothing: the port was gone."""
    end = end_of(ListenerPort(max_retries=2).open(), entry(), 3, MessageState.HALTED, CRASH, now=NOW)

    assert isinstance(end, Halt)
    assert end.counts == Counts(3)


@pytest.mark.parametrize("state", [MessageState.UNTOUCHED, MessageState.CRASHED, MessageState.TIMED_OUT])
def test_lp_2_a_message_that_was_not_reached_stops_nothing_whatever_it_has_had(state: MessageState) -> None:
    assert end_of(ListenerPort(max_retries=2).open(), entry(), 2, state, CRASH, now=NOW) == Stay(Counts(2))


@pytest.mark.parametrize("state", [MessageState.UNTOUCHED, MessageState.CRASHED, MessageState.ENDED])
def test_dmp_7_a_message_that_has_used_its_deliveries_goes_away_whoever_saw_the_last(state: MessageState) -> None:
    end = end_of(DefaultMessaging(max_failed_deliveries=3).open(), entry(1), 2, state, CRASH, now=NOW)

    assert isinstance(end, Dispose)
    assert end.counts == Counts(3)
