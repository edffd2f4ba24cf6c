"""A handler that plays a script in whatever process it runs: each call is written to a file, and its number decides its outcome."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.rules.simulation.scripted_host import OutcomeKind, Outcomes
from airflow_poison.values.failures import Postpone, Unprocessable

if TYPE_CHECKING:
    from airflow_poison.delivery.handler_wrappers import Session
    from airflow_poison.values.clock import VirtualClock
    from airflow_poison.values.message import Message


@dataclass(frozen=True)
class ScriptedHandler:
    """A handler for messages whose ``message_id`` is a name of the script, and for sessions of named items."""

    calls_file: str
    outcomes: dict[str, str]
    items: dict[str, dict[str, str]]
    clock: VirtualClock

    def __call__(self, message: Message | Session) -> None:
        """Record the call and end as the script says."""
        if not isinstance(message, Iterable):
            self._play(self.outcomes[message.message_id], self._record(message))
            return
        name = message.gram.message_id
        number = self._record(message.gram)
        for item in message:
            self._play(self.items[name][item.text], number)

    def _record(self, message: Message) -> int:
        """Append the call; return how many this message had before."""
        path = Path(self.calls_file)
        earlier = path.read_text().count(_named(message.message_id)) if path.exists() else 0
        at = (self.clock.now() - type(self.clock)().now()).total_seconds()
        call = {"name": message.message_id, "t": at, "abort_count": message.abort_count, "move_count": message.move_count}
        with path.open("a") as file:
            file.write(json.dumps(call) + "\n")
        return earlier

    @staticmethod
    def _play(outcomes: str, number: int) -> None:
        outcome = next(islice(iter(Outcomes(outcomes)), number, None))
        match outcome.kind:
            case OutcomeKind.OK:
                return
            case OutcomeKind.RB:
                raise ValueError("rolled back by the script")
            case OutcomeKind.CRASH:
                os._exit(3)
            case OutcomeKind.UNPROCESSABLE:
                raise Unprocessable
            case OutcomeKind.POSTPONE:
                raise Postpone(outcome.span or timedelta(0))
            case _:
                raise AssertionError(f"{outcome.kind} needs a host machine")


def _named(message_id: str) -> str:
    """Return how the line of a call of this message begins."""
    return f'{{"name": {json.dumps(message_id)},'
