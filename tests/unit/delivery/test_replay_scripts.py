"""Scripts and results as users write and read them."""

from __future__ import annotations

import doctest
from datetime import timedelta
from itertools import islice

import pytest

from airflow_poison.core.delivery import replay as module
from airflow_poison.core.delivery.replay import replay
from airflow_poison.core.delivery.script import Action, Outcomes, Script, Scripted
from airflow_poison.core.errors import InputError
from airflow_poison.core.policies.msmq4 import Msmq4


def test_the_example_of_the_docstring_runs() -> None:
    assert doctest.testmod(module) == (0, 3)


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


def test_an_endless_replay_is_stopped_and_says_so() -> None:
    result = replay(Msmq4(receive_retry_count=2147483647), "rb*", most_receives=100)

    assert result.endless
    assert len(result.deliveries) == 100
    assert "Stopped after 100 receives" in str(result)


def test_a_replay_that_ends_at_its_limit_is_not_endless() -> None:
    assert not replay(Msmq4(), "ok", most_receives=1).endless


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
