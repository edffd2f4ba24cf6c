"""Dialog state: what a delivery has to know of the conversations whose messages it claimed, and which messages overtake others.

The driver of a pass writes the state, and every task reads it. The order is from spec SB-41 to SB-49, section 11.1.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

from airflow_poison.dialogs.endpoint import ConversationEndpoint
from airflow_poison.dialogs.services import Service
from airflow_poison.dialogs.system_messages import DIALOG_TIMER, ERROR, is_system

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


AS_ARRIVED = 2
"""The precedence of all that overtakes nothing."""


class Place(NamedTuple):
    """Where a message is received when that is not its place of arrival (spec SB-41).

    :param anchor: the lowest lookup id of the messages that still wait in its dialog when its turn comes: there it is received.
    :param precedence: 0 for a DialogTimer, 1 for an Error; 2 for all others, which have no exception.
    """

    anchor: int
    precedence: int


@dataclass(frozen=True, slots=True)
class DialogState:
    """The conversations of a claim.

    :param services: of the queue, by name.
    :param endpoints: this side's endpoints, by handle, as they are stored; a conversation that only begins has none.
    :param waiting: the types of the messages that have arrived and wait in the queue, by handle.
    :param exceptions: the messages that are received elsewhere than in the order of their lookup ids, by lookup id.
    :param begun: endpoints that are not stored yet, of conversations whose first message comes behind others, or is not among what was claimed.
    """

    services: Mapping[str, Service] = field(default_factory=dict)
    endpoints: Mapping[str, ConversationEndpoint] = field(default_factory=dict)
    waiting: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exceptions: Mapping[int, Place] = field(default_factory=dict)
    begun: Mapping[str, ConversationEndpoint] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        told = {
            "services": {name: service.to_dict() for name, service in self.services.items()},
            "endpoints": [endpoint.to_dict() for endpoint in self.endpoints.values()],
            "waiting": {handle: list(types) for handle, types in self.waiting.items()},
            "exceptions": [[lookup_id, *place] for lookup_id, place in self.exceptions.items()],
            "begun": [endpoint.to_dict() for endpoint in self.begun.values()],
        }
        path.write_text(json.dumps(told))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``save`` wrote."""
        told = json.loads(path.read_text())
        endpoints, begun = ([ConversationEndpoint.from_dict(values) for values in told[name]] for name in ("endpoints", "begun"))
        return cls(
            {name: Service.from_dict(values) for name, values in told["services"].items()},
            {endpoint.handle: endpoint for endpoint in endpoints},
            {handle: tuple(types) for handle, types in told["waiting"].items()},
            {lookup_id: Place(anchor, precedence) for lookup_id, anchor, precedence in told["exceptions"]},
            {endpoint.handle: endpoint for endpoint in begun},
        )


# The order of receive --------------------------------------------------------------------------------------------------


_CLASSES: Mapping[str | None, int] = {DIALOG_TIMER: 0, ERROR: 1}


class WaitingMessages(NamedTuple):
    """A message that waits in the queue, as far as its place in the order goes.

    :param lookup_id: its place of arrival.
    :param handle: of its conversation; None: it belongs to none, and overtakes nothing.
    :param group: the conversation group; None: its conversation is a group of its own.
    :param priority: of its conversation (spec SB-48); all messages of a conversation have the same.
    """

    lookup_id: int
    handle: str | None = None
    group: str | None = None
    message_type: str | None = None
    priority: int = 5

    @property
    def precedence(self) -> int:
        """0 for a DialogTimer, 1 for an Error, 2 for all others (spec SB-41); EndDialog is one of the others (spec SB-42)."""
        return AS_ARRIVED if self.handle is None else _CLASSES.get(is_system(self.message_type), AS_ARRIVED)


def overtaking_messages(rows: Iterable[WaitingMessages]) -> Mapping[int, Place]:
    """Return the places of the messages that overtake others of their dialog, by lookup id; all others have (lookup id, 2).

    Sorted by (priority descending, anchor, precedence, lookup id), messages stand in the order in which one RECEIVE TOP(1) after the other takes
    them. The anchor is the lowest lookup id that still waits in the dialog when the message's turn has come: a dialog's place among others
    is its oldest message's, and a DialogTimer that arrived before an Error is gone when the Error's turn comes.

    :param rows: all that waits of each dialog.
    """
    dialogs: dict[str, list[WaitingMessages]] = defaultdict(list)
    for row in rows:
        if row.handle is not None:
            dialogs[row.handle].append(row)
    return {lookup_id: place for dialog in dialogs.values() for lookup_id, place in _places(dialog)}


def _places(dialog: list[WaitingMessages]) -> Iterable[tuple[int, Place]]:
    """Go through a dialog from the last message to the first: what has been passed is what is still there when a message's turn comes."""
    oldest: int | None = None
    for row in sorted(dialog, key=_in_dialog, reverse=True):
        oldest = row.lookup_id if oldest is None else min(oldest, row.lookup_id)
        if row.precedence != AS_ARRIVED:
            yield row.lookup_id, Place(oldest, row.precedence)


def _in_dialog(row: WaitingMessages) -> tuple[int, int]:
    return row.precedence, row.lookup_id
