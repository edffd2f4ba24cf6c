"""The settings of ``outage=``: what is allowed, what an error says, the JSON form, and the command line's."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from airflow_poison.cli import values
from airflow_poison.delivery.outage import Detection, OutageVerdict, Watch, Window, some
from airflow_poison.rules.outage import Outage, checked_outage
from airflow_poison.values.errors import InputError, SettingError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"share": 0}, "share=0 is not allowed; allowed: a number above 0, at most 1"),
        ({"share": 1.5}, "share=1.5"),
        ({"share": True}, "share=True"),
        ({"share": float("nan")}, "share=nan"),
        ({"share": "half"}, "share='half'"),
        ({"at_least": 2}, "at_least=2 is not allowed; allowed: a whole number from 3"),
        ({"probe": 0}, "probe=0 is not allowed; allowed: a whole number from 1"),
        ({"every": timedelta(seconds=-1)}, "every="),
        ({"every": 5}, "every=5"),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_expected(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError) as raised:
        Outage(**given)
    assert said in str(raised.value)


def test_the_json_form_makes_the_same_settings() -> None:
    outage = Outage(share=0.25, at_least=7, probe=3, every=timedelta(seconds=90))
    assert Outage.from_dict(json.loads(json.dumps(outage.to_dict()))) == checked_outage(outage.to_dict()) == outage
    assert checked_outage(None) is None


@pytest.mark.parametrize("given", [True, "yes", Outage, 0.5])
def test_what_is_no_outage_is_refused(given: object) -> None:
    with pytest.raises(SettingError, match=r"Outage\(\), with the settings"):
        checked_outage(given)


def test_the_command_line_reads_them() -> None:
    assert values.outage(None) is None
    assert values.outage([]) == Outage()
    assert values.outage(["at_least=200", "every=10m", "share=1"]) == Outage(at_least=200, every=timedelta(minutes=10), share=1.0)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (["200"], InputError, "--outage 200: expected NAME=VALUE"),
        (["every=soon"], InputError, "--outage every soon: expected a duration"),
        (["at_leats=5"], SettingError, "the nearest is at_least"),
        (["share=most"], SettingError, "share='most'"),
    ],
)
def test_the_command_line_says_what_is_wrong(given: list[str], error: type[Exception], said: str) -> None:
    with pytest.raises(error) as raised:
        values.outage(given)
    assert said in str(raised.value)


# The window ------------------------------------------------------------------------------------------------------------


def window(outcomes: str) -> Window:
    """A window after deliveries: a dot for one that went well, a letter for the fingerprint of one that failed, each of another message."""
    made = Window(Outage(at_least=6, probe=2))
    for number, letter in enumerate(outcomes):
        if letter == ".":
            made.succeeded()
        else:
            made.failed(letter, number)
    return made


@pytest.mark.parametrize(
    ("outcomes", "others", "suspect"),
    [
        ("aaaaaa", 0, "a"),
        ("aaaaa", 0, None),  # fewer than at_least
        ("aaaa", 2, "a"),  # with those that could be tried they are enough
        ("aaaa", 1, None),
        ("...aaa", 0, "a"),
        ("....aa", 0, None),  # below the share
        ("aaaaaa.", 0, None),  # the last one went well
        ("aabbab", 0, "a"),
        ("abcdef", 0, None),
        ("......................aaa", 0, "a"),  # only the last six count
    ],
)
def test_the_last_deliveries_decide(outcomes: str, others: int, suspect: str | None) -> None:
    assert window(outcomes).suspect(others) == suspect


def test_a_message_that_is_tried_again_weighs_once() -> None:
    made = Window(Outage(at_least=6, probe=2))
    made.succeeded(2)
    for _ in range(4):
        made.failed("a", 1)
    assert made.suspect(0) is None
    assert made.messages("a") == 1


def test_others_are_chosen_by_chance_and_in_their_order() -> None:
    chosen = some(range(0, 10_000, 4), 50)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 50
    assert len({place % 40 for place in chosen}) > 5  # at no regular distance
    assert some([1, 2], 50) == [1, 2]


def test_what_was_poison_before_needs_twice_as_many_others(tmp_path: Any) -> None:
    from datetime import UTC, datetime

    from airflow_poison.values.failures import Failure, FailureKind

    watch, tried = Watch(Detection(Outage(at_least=10, probe=4), str(tmp_path)), lambda: datetime.now(UTC)), list[int]()
    failure = Failure(FailureKind.EXCEPTION, "KeyError")

    def fine(row: int) -> None:
        tried.append(row)

    assert not watch.doubt(failure, range(100), fine)
    first = len(tried)
    assert not watch.doubt(failure, range(100), fine)
    assert len(tried) - first > first
    assert OutageVerdict.read(tmp_path) is None
    assert watch.doubt(failure, range(100), lambda _row: failure)
    assert watch.stopped()
