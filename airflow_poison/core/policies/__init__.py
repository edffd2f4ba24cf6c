"""The rules of the messaging systems: one file per system, pure, frozen, picklable, with a JSON round trip."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_poison.core.policies.seam import Policy

_MODULES = {"Msmq4": "msmq4", "PoisonSubQueue": "poison_subqueue"}
"""Where each messaging system's policy lives; imported when it is first asked for."""


def policy_from_dict(settings: Mapping[str, object]) -> Policy:
    """Return the policy of ``Policy.to_dict()``, chosen by ``system``.

    Raises SettingError for an unknown system, an unknown setting or a value that is not allowed.
    """
    system = settings.get("system")
    if not isinstance(system, str) or system not in _MODULES:
        from airflow_poison.core.errors import SettingError

        raise SettingError("system", system, ", ".join(_MODULES))
    module = import_module(f"{__name__}.{_MODULES[system]}")
    policy: Policy = getattr(module, system).from_dict(settings)
    return policy
