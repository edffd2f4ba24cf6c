"""WebSphere MQ on z/OS: which count is kept where, and how far it goes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.decisions import Counts, Deliver, Dispose, Halt, Return
from airflow_poison.rules.listener_port import ListenerPort
from airflow_poison.rules.policy import Restart
from airflow_poison.values.errors import ConfigurationWarning, SettingError
from tests.unit.rules.entries import NOW, RAISED, message

POLICIES = [pytest.param(ActivationSpecification, id="activation specification"), pytest.param(ListenerPort, id="listener port")]
Mq = type[ActivationSpecification] | type[ListenerPort]

HARDENED = [
    pytest.param({"zos": True}, False, id="ZOS-E9 default on z/OS"),
    pytest.param({"zos": False}, True, id="ZOS-E9 default elsewhere"),
    pytest.param({"zos": True, "harden_get_backout": True}, True, id="ZOS-6"),
    pytest.param({"zos": True, "harden_get_backout": False}, False, id="ZOS-5"),
    pytest.param({"zos": False, "harden_get_backout": False}, True, id="ZOS-9 other platforms always harden"),
    pytest.param({"zos": True, "shared_queue": True}, True, id="ZOS-9 shared queue"),
    pytest.param({"zos": True, "shared_queue": True, "harden_get_backout": False}, True, id="ZOS-9 shared queue not hardened"),
]


@pytest.mark.parametrize("system", POLICIES)
@pytest.mark.parametrize(("settings", "hardened"), HARDENED)
def test_a_restart_of_the_queue_manager_loses_a_count_that_is_not_hardened(system: Mq, settings: dict[str, Any], hardened: bool) -> None:  # noqa: FBT001
    policy = system.from_dict(settings)

    assert policy.counts_after(Counts(2, 3), Restart.BROKER) == Counts(2 if hardened else 0, 3)
    assert policy.stored_backout_count(Counts(2)) == (2 if hardened else 0)


@pytest.mark.parametrize("system", POLICIES)
@pytest.mark.parametrize("restart", [Restart.ENDPOINT, Restart.SERVER])
def test_zos_e7_zos_2_the_copy_belongs_to_the_queue_manager(system: Mq, restart: Restart) -> None:
    assert system(zos=True).counts_after(Counts(2), restart) == Counts(2)


@pytest.mark.parametrize(
    ("written", "hardened"),
    [
        ({"HARDENBO": "YES"}, True),
        ({"HNDBKTCNT": "YES"}, True),
        ({"HardenGetBackout": "YES"}, True),
        ({"hardenbo": "yes"}, True),
        ({"harden_get_backout": "YES"}, True),
        ({"HARDENBO": True}, True),
        ({"HARDENBO": "MQQA_BACKOUT_HARDENED"}, True),
        ({"HARDENBO": "NO"}, False),
        ({"HNDBKTCNT": False}, False),
        ({"HardenGetBackout": "MQQA_BACKOUT_NOT_HARDENED"}, False),
        ({"NOHARDENBO": "YES"}, False),
        ({"NOHARDENBO": True}, False),
        ({"NOHARDENBO": "NO"}, True),
        ({"HARDENBO": None}, None),
    ],
    ids=lambda value: f"ZOS-E9 ZOS-9 {value}",
)
@pytest.mark.parametrize("system", POLICIES)
def test_one_setting_has_many_names(system: Mq, written: dict[str, object], hardened: bool | None) -> None:  # noqa: FBT001
    policy = system.from_dict({"zos": True} | written)

    assert policy.harden_get_backout is hardened
    assert policy.altered(written).harden_get_backout is hardened


@pytest.mark.parametrize(
    "written",
    [
        {"HARDENBO": "MAYBE"},
        {"NOHARDENBO": 1},
        {"HARDENBO": "YES", "HNDBKTCNT": "YES"},
        {"HARDENBO": "YES", "NOHARDENBO": "YES"},
    ],
    ids=str,
)
def test_zos_e9_contradictions_and_other_words_are_refused(written: dict[str, object]) -> None:
    with pytest.raises(SettingError):
        ActivationSpecification.from_dict({"zos": True} | written)


@pytest.mark.parametrize("system", POLICIES)
def test_zos_3_zos_4_the_threshold_decision_looks_at_the_copys_count(system: Mq) -> None:
    policy = system.from_dict({"zos": True, "backout_threshold": 5, "backout_requeue_queue": "B.Q"})

    assert isinstance(policy.open().before(message(4), NOW), Deliver)
    assert isinstance(policy.open().before(message(5), NOW), Dispose)
    assert policy.stored_backout_count(Counts(5)) == 0


def test_zos_3_a_listener_ports_stop_looks_at_the_copys_count_a_specifications_at_its_counter() -> None:
    port = ListenerPort(zos=True, max_retries=2).open()
    specification = ActivationSpecification(zos=True, failure_delivery_count=2).open()

    assert isinstance(port.after_rollback(message(1), RAISED, NOW), Halt)
    assert specification.after_rollback(message(1), RAISED, NOW) == Return(Counts(2))


@pytest.mark.parametrize("system", POLICIES)
@pytest.mark.parametrize(
    ("zos", "before", "after"),
    [
        pytest.param(True, 254, 255, id="ZOS-9 up to 255"),
        pytest.param(True, 255, 255, id="ZOS-9 no further"),
        pytest.param(True, 300, 300, id="ZOS-9 counted elsewhere"),
        pytest.param(False, 255, 256, id="ZOS-9 elsewhere further"),
    ],
)
def test_how_far_backouts_are_counted(system: Mq, zos: bool, before: int, after: int) -> None:  # noqa: FBT001
    policy = system.from_dict(
        {"zos": zos, "stop_endpoint_if_delivery_fails": False} if system is ActivationSpecification else {"zos": zos, "max_retries": 9999}
    )

    assert policy.open().after_rollback(message(before), RAISED, NOW) == Return(Counts(after))


@pytest.mark.parametrize("system", POLICIES)
def test_zos_9_a_threshold_above_255_is_never_reached_on_zos(system: Mq) -> None:
    policy = system.from_dict({"zos": True, "backout_threshold": 256})

    assert isinstance(policy.open().before(message(255), NOW), Deliver)


@given(st.booleans(), st.booleans(), st.integers(0, 300))
def test_zos_1_without_a_restart_everything_is_as_elsewhere(hardened: bool, shared: bool, count: int) -> None:  # noqa: FBT001
    settings = {"backout_threshold": 7, "backout_requeue_queue": "B.Q", "failure_delivery_count": 4, "max_server_sessions": 1}
    elsewhere = ActivationSpecification.from_dict(settings)
    on_zos = ActivationSpecification.from_dict(settings | {"zos": True, "harden_get_backout": hardened, "shared_queue": shared})

    assert on_zos.open().before(message(count), NOW) == elsewhere.open().before(message(count), NOW)
    if count < 255:
        assert on_zos.open().after_rollback(message(count), RAISED, NOW) == elsewhere.open().after_rollback(message(count), RAISED, NOW)


def test_zos_9_a_listener_port_warns_of_limits_above_255() -> None:
    with pytest.warns(ConfigurationWarning, match="never reached on z/OS") as caught:
        ListenerPort(zos=True, max_retries=300, backout_threshold=256, backout_requeue_queue="B.Q")

    assert [str(warning.message).split("=")[0] for warning in caught] == ["backout_threshold", "max_retries"]
