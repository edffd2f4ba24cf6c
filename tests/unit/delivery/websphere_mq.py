"""Endpoints of WebSphere MQ for tests, and what their replays tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.listener_port import ListenerPort
from airflow_poison.rules.simulation.scripted_host import Action

if TYPE_CHECKING:
    from airflow_poison.rules.simulation.replay import Replay

NEVER_STOPS = {"stop_endpoint_if_delivery_fails": False}


def specification(**settings: object) -> ActivationSpecification:
    return ActivationSpecification.from_dict({"max_server_sessions": 1, "backout_requeue_queue": "B.Q"} | settings)


def port(**settings: object) -> ListenerPort:
    return ListenerPort.from_dict({"backout_requeue_queue": "B.Q"} | settings)


def delivered(result: Replay) -> list[str]:
    return [call.message for call in result.deliveries]


def starts(*at: float) -> list[Action]:
    return [Action(seconds, "open") for seconds in at]
