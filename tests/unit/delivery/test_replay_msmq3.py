"""Replays of WCF on MSMQ 3.0: what the worked examples' data cannot say."""

from __future__ import annotations

import pytest

from airflow_poison.rules.msmq3 import Msmq3
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.simulation.replay import replay
from airflow_poison.rules.simulation.scripted_host import Action, Script, Scripted
from airflow_poison.values.errors import SettingError
from airflow_poison.values.events import EventType
from tests.conformance.examples.msmq3 import E4

DROP = Msmq3(receive_retry_count=2, receive_error_handling="Drop")
FAULT = Msmq3(receive_retry_count=2)


@pytest.mark.parametrize("handling", ["Move", "Reject"])
def test_m3_3_m3_e2_move_and_reject_are_refused_when_the_service_is_set_up(handling: str) -> None:
    with pytest.raises(SettingError, match="MSMQ 3"):
        Msmq3(receive_error_handling=handling)


@pytest.mark.parametrize("retries", [0, 1, 2, 5])
def test_m3_1_the_deliveries_of_a_hopeless_message(retries: int) -> None:
    result = replay(Msmq3(receive_retry_count=retries, receive_error_handling="Drop"), "rb*")

    assert (len(result.deliveries), result.receives) == (retries + 1, retries + 2)


def test_m3_e2_what_is_stored_after_a_fault_are_all_its_aborted_receives() -> None:
    result = replay(Msmq3(), "rb*")

    assert (result.message().counts.abort_count, result.message().place) == (7, "main")


def test_m3_4_m3_e3_a_restart_loses_the_channel_s_counts_and_none_of_the_stored_ones() -> None:
    result = replay(DROP, Script(Scripted("m", "rb(10) rb(10) rb rb(10) ok"), actions=[Action(20, "restart_server")]))

    assert [call.counts.abort_count for call in result.deliveries] == [0, 1, 0, 1, 2]
    stored = [event.abort_count for event in result.events if event.type is EventType.ROLLED_BACK]
    assert stored == [1, 2, 3, 4]


@pytest.mark.parametrize("restart", ["restart", "restart_server", "crash"])
def test_m3_4_whatever_ends_the_service_s_memory_gives_fresh_deliveries(restart: str) -> None:
    result = replay(DROP, Script(Scripted("m", "rb(10)*2 rb*"), actions=[Action(20, restart)]))

    assert (len(result.deliveries), result.message().place) == (5, "dropped")


def test_m3_4_a_restart_of_the_broker_is_none_of_the_service() -> None:
    result = replay(FAULT, Script(Scripted("m", "rb*"), actions=[Action(60, "restart_broker")]))

    assert len(result.deliveries) == 3


def test_m3_10_after_a_fault_msmq_3_gives_fresh_deliveries_and_msmq_4_gives_none() -> None:
    script = Script(Scripted("m", "rb*"), actions=[Action(60, "open"), Action(120, "open")])

    assert len(replay(FAULT, script).deliveries) == 9
    assert len(replay(Msmq4(receive_retry_count=2, max_retry_cycles=0), script).deliveries) == 3


def test_m3_10_the_fault_leaves_the_rest_of_the_queue_where_it_is() -> None:
    result = replay(FAULT, {"x": "rb*", "y": "ok"})

    assert result.message("y").place == "main"
    assert result.message("y").receives == 0


def test_m3_e4_the_257th_message_gives_the_first_one_two_more_deliveries() -> None:
    result = replay(E4.policy, E4.script)

    assert result.message("M1").deliveries == 5
    smaller = replay(E4.policy, Script(*E4.script.messages[:-1]))
    assert smaller.message("M1").deliveries == 3


def test_m3_9_the_endless_message_becomes_poison_as_soon_as_nothing_new_arrives() -> None:
    failing = Scripted("old", "rb(10)*5 rb*", priority=0)
    others = [Scripted(f"{n}", at=5) for n in range(4)] + [Scripted(f"new {n}", at=n * 10 + 15) for n in range(4)]

    result = replay(Msmq3(receive_retry_count=2, receive_error_handling="Drop", seen_table_size=4), Script(failing, *others))

    shown = [call.counts.abort_count for call in result.deliveries if call.message == "old"]
    assert shown == [0, 0, 0, 0, 0, 0, 1, 2]
    assert result.message("old").place == "dropped"


def test_a_message_whose_handler_postpones_it_again_and_again_does_not_become_poison() -> None:
    result = replay(DROP, "postpone(1)*9 rb rb ok")

    assert (result.message().place, result.exceptions, len(result.deliveries)) == ("processed", 0, 12)


def test_wcf_38_a_session_is_counted_and_dropped_as_a_whole() -> None:
    session = Scripted("S", items={"i1": "ok*", "i2": "rb*", "i3": "ok*"})

    result = replay(Msmq3(receive_retry_count=1, receive_error_handling="Drop", sessions=True), Script(session))

    assert [call.items for call in result.deliveries] == [("i1", "i2")] * 2
    assert result.message("S").place == "dropped"


def test_an_unprocessable_message_is_dropped_at_once() -> None:
    result = replay(DROP, "unprocessable")

    assert (len(result.deliveries), result.story()) == (1, ["POISON_EXCEPTION", "DROPPED"])
