"""Scripts and results as users write and read them."""

from __future__ import annotations

import doctest
from datetime import timedelta
from itertools import islice

import pytest

from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.decisions import Halted
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.rules.simulation import replay as module
from airflow_poison.rules.simulation.replay import replay
from airflow_poison.rules.simulation.scripted_host import Action, Outcomes, Script, Scripted
from airflow_poison.values.errors import InputError


def test_the_example_of_the_docstring_runs() -> None:
    assert doctest.testmod(module) == (0, 5)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("", "ok ok ok"),
        ("rb", "rb ok ok"),
        ("rb*", "rb rb rb"),
        ("rb*2 crash", "rb rb crash"),
        ("timeout rb*", "timeout rb rb"),
        ("rb*0 ok", "ok ok ok"),
    ],
)
def test_outcomes_follow_each_other_and_end_with_ok(text: str, kinds: str) -> None:
    assert " ".join(outcome.kind for outcome in islice(Outcomes(text), 3)) == kinds


def test_an_outcome_can_take_time() -> None:
    assert next(iter(Outcomes("postpone(1.5)"))).span == timedelta(seconds=1.5)


@pytest.mark.parametrize("text", ["fail", "rb* ok", "rb(x)", "rb**", "ok(-1)", "RB"])
def test_a_text_that_is_no_script_is_named(text: str) -> None:
    with pytest.raises(InputError, match="outcomes"):
        Outcomes(text)


@pytest.mark.parametrize(
    "action", [Action(0, "explode"), Action(0, "remove"), Action(0, "remove", "x"), Action(0, "close", "m"), Action(0, "put_back", "x")]
)
def test_an_action_that_cannot_be_is_refused(action: Action) -> None:
    with pytest.raises(InputError, match="action"):
        Script("ok", actions=[action])


def test_names_are_unique() -> None:
    with pytest.raises(InputError, match="name"):
        Script(Scripted("a"), Scripted("a"))


@pytest.mark.parametrize("verb", ["put_back", "remove"])
def test_a_message_must_be_where_an_action_expects_it(verb: str) -> None:
    with pytest.raises(InputError, match="processed"):
        replay(Msmq4(), Script("ok", actions=[Action(1, verb, "m")]))


def test_a_message_in_delivery_is_removed_after_it() -> None:
    result = replay(Msmq4(), Script("rb(10)*", actions=[Action(5, "remove", "m")]))

    assert (result.message().place, len(result.deliveries), result.elapsed) == ("removed", 1, timedelta(seconds=10))


def test_wcf_25_a_message_in_delivery_is_removed_when_a_closed_host_ends_the_delivery() -> None:
    """Section 11.1: a host that is closed during a delivery aborts it at once; the removal waits no longer, and nobody gets the message again."""
    script = Script("before_operation*", actions=[Action(10, "remove", "m"), Action(20, "restart"), Action(30, "restart")])

    result = replay(Msmq4(transaction_timeout=timedelta(seconds=60)), script)

    assert (result.message().place, result.receives, result.elapsed) == ("removed", 1, timedelta(seconds=20))


def test_a_queue_that_is_switched_off_during_a_delivery_is_off_when_a_crash_ends_it() -> None:
    script = Script("ok(60)", actions=[Action(10, "disable"), Action(20, "crash")])

    result = replay(ServiceBroker(), script)

    assert (result.message().place, result.message().deliveries, result.halted) == ("main", 1, Halted.DISABLED)


def test_a_member_of_a_batch_is_removed_after_its_transaction() -> None:
    script = Script(Scripted("a", "ok(10)"), Scripted("b", "rb(10)"), actions=[Action(5, "remove", "a")])

    result = replay(Msmq4(max_batch_size=5), script)

    assert (result.message("a").place, result.message("a").deliveries, result.message("b").place) == ("removed", 1, "processed")


def test_what_faults_the_endpoint_in_the_delivery_that_a_removal_waits_for_is_removed() -> None:
    result = replay(Msmq4(receive_retry_count=0, max_retry_cycles=0), Script("rb(10)*", actions=[Action(5, "remove", "m")]))

    assert result.message().place == "removed"


def test_an_endless_replay_is_stopped_and_says_so() -> None:
    result = replay(Msmq4(receive_retry_count=2147483647), "rb*", most_receives=100)

    assert result.endless
    assert len(result.deliveries) == 100
    assert "Stopped after 100 receives" in str(result)


def test_a_replay_that_ends_at_its_limit_is_not_endless() -> None:
    assert not replay(Msmq4(), "ok", most_receives=1).endless


def test_until_stops_the_clock_during_a_delivery() -> None:
    """Calls at 0 and 50; the second one is under way when the clock stops."""
    result = replay(Msmq4(), "rb(50)*", until=timedelta(seconds=60))

    assert [call.at.total_seconds() for call in result.deliveries] == [0, 50]
    assert (result.message().place, result.message().counts.abort_count, result.elapsed) == ("in_delivery", 1, timedelta(seconds=60))
    assert not result.endless


@pytest.mark.parametrize(("seconds", "place"), [(49, "in_delivery"), (50, "processed")])
def test_what_ends_when_the_clock_stops_has_happened(seconds: int, place: str) -> None:
    result = replay(Msmq4(), "ok(50)", until=timedelta(seconds=seconds))

    assert (result.message().place, result.elapsed) == (place, timedelta(seconds=seconds))


def test_what_people_do_during_a_delivery_happens_before_the_clock_stops() -> None:
    script = Script("rb(50)*", actions=[Action(20, "close"), Action(55, "open")])

    result = replay(Msmq4(), script, until=timedelta(seconds=30))

    assert (result.message().place, result.story(routine=True), result.elapsed) == ("main", ["DELIVERED", "ROLLED_BACK"], timedelta(seconds=30))


def test_an_endpoint_that_stopped_while_another_session_works_on_has_stopped_when_the_clock_stops() -> None:
    policy = ActivationSpecification(max_server_sessions=2)

    result = replay(policy, Script({"a": "rb(10)", "b": "ok(60)"}), until=timedelta(seconds=30))

    assert (result.halted, result.message("a").place, result.message("b").place) == (Halted.STOPPED, "main", "in_delivery")
    assert dict(result.counters) == {"sequential_failures": 1}


def test_the_tries_of_a_move_take_no_longer_than_until() -> None:
    policy = Msmq4(receive_retry_count=0, receive_error_handling="Move")

    result = replay(policy, Script(Scripted("m", "rb*", locked=49)), until=timedelta(seconds=1))

    assert (result.story(), result.elapsed) == ([], timedelta(seconds=1))


def test_until_stops_the_clock() -> None:
    policy = Msmq4(receive_retry_count=0, receive_error_handling="Move")

    before, after = (replay(policy, "rb ok", until=timedelta(minutes=minutes)) for minutes in (29, 30))

    assert (before.message().place, before.waited, before.elapsed) == ("retry", timedelta(minutes=29), timedelta(minutes=29))
    assert (after.message().place, after.waited) == ("processed", timedelta(minutes=30))


def test_a_result_reads_like_a_table() -> None:
    result = replay(Msmq4(receive_retry_count=0, max_retry_cycles=0), {"x": "rb", "y": "ok"})

    lines = [line.split() for line in str(result).splitlines()]
    assert ["0:00:00", "FAULTED", "x", "2", "0", "place=main"] in lines
    assert ["x", "1", "2", "0:00:00", "main", "2", "0"] in lines
    assert str(result).endswith("The endpoint is faulted.")


def test_a_script_is_shown_without_what_it_has_by_default() -> None:
    script = Script({"a": "rb"}, Scripted("b", at=30), actions=[Action(60, "close")])

    assert repr(script) == "Script(Scripted(name='a', outcomes='rb'), Scripted(name='b', at=30), actions=[Action(at=60, verb='close')])"
