"""Poison-message handling for Apache Airflow and Spark: queue tables, retry cycles, and the rules of the classic message queues.

The names below are the public face. Each is imported when it is first used (PEP 562): importing this package imports nothing,
because Airflow does so in every process.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_poison.core.delivery.replay import replay
    from airflow_poison.core.failures import Postpone, Unprocessable
    from airflow_poison.core.message import Message
    from airflow_poison.core.policies.msmq4 import Msmq4
    from airflow_poison.core.policies.poison_subqueue import PoisonSubQueue

__version__ = "0.1.0"
__all__ = ["Message", "Msmq4", "PoisonSubQueue", "Postpone", "Unprocessable", "__version__", "replay"]

_HOMES = {
    "Message": "message",
    "Msmq4": "policies.msmq4",
    "PoisonSubQueue": "policies.poison_subqueue",
    "Postpone": "failures",
    "Unprocessable": "failures",
    "replay": "delivery.replay",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    value: object = getattr(import_module(f"{__name__}.core.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted(__all__)
