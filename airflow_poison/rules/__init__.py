"""The rules of the messaging systems: one file per system, pure, frozen, picklable, with a JSON round trip."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_poison.rules.policy import Policy

SYSTEMS = {
    "Msmq4": "msmq4",
    "Msmq3": "msmq3",
    "PoisonSubQueue": "msmq4",
    "ServiceBroker": "service_broker",
    "DefaultMessaging": "default_messaging",
    "ActivationSpecification": "activation_specification",
    "ListenerPort": "listener_port",
}
"""Where each messaging system's policy lives; imported when it is first asked for."""


def policy_class(system: str) -> type[Policy]:
    """Return the policy of a messaging system. Raises SettingError for a name that is none."""
    if system not in SYSTEMS:
        from airflow_poison.values.errors import SettingError

        raise SettingError("system", system, ", ".join(SYSTEMS))
    found: type[Policy] = getattr(import_module(f"{__name__}.{SYSTEMS[system]}"), system)
    return found


def checked_policy(policy: Policy | None, setting: str = "policy") -> Policy | None:
    """Return a policy as it was given, or None. Raises SettingError for what is none: a system's name or class, or its settings."""
    if policy is None or (hasattr(policy, "to_dict") and not isinstance(policy, type)):
        return policy
    from airflow_poison.values.errors import SettingError

    named = policy.__name__ if isinstance(policy, type) else str(policy)
    system = named if named in SYSTEMS else "Msmq4"
    expected = f"a policy of airflow_poison: {system}(), with the settings that differ from its defaults in the brackets"
    raise SettingError(setting, policy, f"{expected}; the systems are {', '.join(SYSTEMS)}")


def policy_from_dict(settings: Mapping[str, object]) -> Policy:
    """Return the policy of ``Policy.to_dict()``, chosen by ``system``.

    Raises SettingError for an unknown system, an unknown setting or a value that is not allowed.
    """
    return policy_class(str(settings.get("system"))).from_dict(settings)
