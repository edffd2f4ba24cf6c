"""What people do in a script, done to a queue table with the real verbs."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from airflow_poison.passes.alter import alter, disable, enable, restart
from airflow_poison.passes.move import put_back, remove
from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.policy import Restart
from airflow_poison.rules.simulation.scripted_host import Action, Verb
from airflow_poison.store.control import QueueState
from airflow_poison.values.errors import ConfigurationWarning

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

OPENING = frozenset({Verb.OPEN, Verb.ENABLE, Verb.RESTART, Verb.RESTART_SERVER})
"""After these an endpoint that was closed is open."""
_RESTARTS = {Verb.RESTART: Restart.ENDPOINT, Verb.RESTART_SERVER: Restart.SERVER, Verb.RESTART_BROKER: Restart.BROKER}


def act(table: QueueTable, clock: Clock, action: Action, number: Callable[[str], int]) -> None:
    """Carry an action out between two passes. To close an endpoint is to begin no pass, so there is nothing to do to the table.

    :param number: the lookup id of a message.
    """
    verb = Verb(action.verb)
    if verb in _RESTARTS:
        restart(table, clock, _RESTARTS[verb])
        return
    match verb:
        case Verb.OPEN if _is_halted(table):
            enable(table, clock)
        case Verb.ENABLE:
            enable(table, clock)
        case Verb.DISABLE:
            disable(table, clock)
        case Verb.ALTER:
            with warnings.catch_warnings(action="ignore", category=ConfigurationWarning):
                alter(table, clock, settings=action.settings)
        case Verb.REMOVE:
            remove(table, number(action.message), clock)
        case Verb.PUT_BACK:
            put_back(table, clock, [number(action.message)])
        case Verb.CRASH:
            raise AssertionError("a crash between passes loses nothing; in a pass it needs a host")


def _is_halted(table: QueueTable) -> bool:
    control = table.snapshot().control
    return control.endpoint(policy_from_dict(control.policy).reads)[0] is not QueueState.ENABLED
