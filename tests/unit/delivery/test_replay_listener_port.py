"""What replays show of listener ports (LP) beyond the worked examples as data."""

from __future__ import annotations

import pytest

from airflow_poison.rules.decisions import Counts
from airflow_poison.rules.simulation.replay import replay
from airflow_poison.rules.simulation.scripted_host import Action, Script
from tests.unit.delivery.websphere_mq import delivered, port, starts


def test_lp_3_lp_e4_different_messages_that_fail_together_do_not_add_up() -> None:
    result = replay(port(max_retries=3, max_sessions=4), Script(dict.fromkeys("abcd", "rb rb ok")))

    assert result.halted is None
    assert len(result.deliveries) == 12


def test_lp_6_what_other_sessions_have_is_still_processed_after_the_stop() -> None:
    result = replay(port(max_sessions=3), Script({"p": "rb", "a": "ok", "b": "rb", "c": "ok"}))

    assert (result.story(), delivered(result)) == (["STOPPED"], ["p", "a", "b"])
    assert result.message("a").place == "processed"
    assert result.message("b").counts == Counts(1)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        pytest.param({}, True, id="LP-7 LP-E9 strict order"),
        pytest.param({"max_sessions": 2}, False, id="LP-7 two sessions"),
        pytest.param({"max_retries": 2, "backout_threshold": 1}, False, id="LP-7 BOTHRESH 1"),
    ],
)
def test_strict_order_needs_threshold_0_and_one_session(settings: dict[str, object], kept: bool) -> None:  # noqa: FBT001
    result = replay(port(**settings), Script({"p": "rb ok", "g": "ok"}, actions=starts(10)))

    ended = [event.details["message"] for event in result.events if event.type in {"COMMITTED", "REQUEUED"}]
    assert [name for name in delivered(result) if name == "g"]
    assert (ended == ["p", "g"] and result.message("p").place == "processed") is kept


def test_lp_8_lp_e1_a_started_port_meets_the_same_message_first() -> None:
    result = replay(port(), Script({"p": "rb rb ok", "g": "ok"}, actions=starts(10, 20)))

    assert [(call.message, call.at.total_seconds()) for call in result.deliveries] == [("p", 0), ("p", 10), ("p", 20), ("g", 20)]


@pytest.mark.parametrize("verb", ["restart", "restart_server", "restart_broker"])
def test_lp_5_lp_e8_a_lost_connection_between_deliveries_never_touches_the_count(verb: str) -> None:
    result = replay(port(max_retries=4), Script("rb(10)*", actions=[Action(20, verb)]))

    assert [call.counts.abort_count for call in result.deliveries] == [0, 1, 2, 3]
    assert result.message().counts == Counts(4)
