"""Policies survive JSON, and open endpoints survive being pickled in the middle of a run."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_poison.rules import SYSTEMS, policy_class, policy_from_dict
from airflow_poison.rules.simulation.replay import replay
from tests.given.examples import examples
from tests.unit.properties.scripts import MOST_RECEIVES, access_to, scripts
from tests.unit.properties.systems import OTHERS, PLAYED, every_setting_of, settings_of

if TYPE_CHECKING:
    from airflow_poison.rules.policy import Opening, Policy, Receiver


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=examples(30))
@given(data=st.data())
def test_a_policy_comes_back_from_json(system: str, data: st.DataObject) -> None:
    policy = data.draw(every_setting_of(system))

    back = policy_from_dict(json.loads(json.dumps(policy.to_dict())))

    assert back == policy
    assert back.to_dict() == policy.to_dict()


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=examples(30))
@given(data=st.data())
def test_settings_change_one_by_one(system: str, data: st.DataObject) -> None:
    before, after = data.draw(every_setting_of(system)), data.draw(every_setting_of(system))
    wanted = after.to_dict()

    assert before.altered(wanted) == after


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_setting_is_drawn(system: str) -> None:
    known = {field.name for field in fields(cast("Any", policy_class(system)))}

    assert PLAYED[system].keys() | OTHERS[system].keys() == known


class Pickled:
    """A receiver that is pickled and read back after every question."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def __getattr__(self, name: str) -> Any:
        self._receiver = pickle.loads(pickle.dumps(self._receiver))
        return getattr(self._receiver, name)


class PickledBetween:
    """A policy whose endpoints are pickled all the time."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def open(self, opening: Opening) -> Receiver:
        return cast("Receiver", Pickled(pickle.loads(pickle.dumps(self._policy)).open(opening)))


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_pickling_an_endpoint_in_the_middle_of_a_run_changes_nothing(system: str, data: st.DataObject) -> None:
    policy, script = data.draw(settings_of(system)), data.draw(scripts())
    access = data.draw(access_to(policy))

    pickled = replay(cast("Policy", PickledBetween(policy)), script, access=access, most_receives=MOST_RECEIVES)

    assert pickled == replay(policy, script, access=access, most_receives=MOST_RECEIVES)
