"""The order in which a queue's messages are received (spec SB-41 to SB-49, section 11.1)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from airflow_poison.core.conversations.at_hand import AS_ARRIVED, Place
from airflow_poison.core.conversations.services import DIALOG_TIMER, ERROR, is_system

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_CLASSES: Mapping[str | None, int] = {DIALOG_TIMER: 0, ERROR: 1}


class Waiting(NamedTuple):
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
    def lock(self) -> str | None:
        """The group that a receive of it locks (spec SB-47); None: nothing else is in it."""
        return self.handle if self.group is None else self.group

    @property
    def precedence(self) -> int:
        """0 for a DialogTimer, 1 for an Error, 2 for all others (spec SB-41); EndDialog is one of the others (spec SB-42)."""
        return AS_ARRIVED if self.handle is None else _CLASSES.get(is_system(self.message_type), AS_ARRIVED)


def exceptions(rows: Iterable[Waiting]) -> Mapping[int, Place]:
    """Return the places of the messages that overtake others of their dialog, by lookup id; all others have (lookup id, 2).

    Sorted by (priority descending, anchor, precedence, lookup id), messages stand in the order of ``receive_order``. The anchor is the lowest
    lookup id of what is still waiting in the dialog when the message's turn has come: a dialog's place among others is that of its oldest
    message, and a DialogTimer that arrived before an Error is gone when the Error's turn comes.

    :param rows: all that waits of each dialog.
    """
    dialogs: dict[str, list[Waiting]] = defaultdict(list)
    for row in rows:
        if row.handle is not None:
            dialogs[row.handle].append(row)
    return {lookup_id: place for dialog in dialogs.values() for lookup_id, place in _places(dialog)}


def receive_order(rows: Iterable[Waiting], locked: Collection[str] = frozenset()) -> list[int]:
    """Return the lookup ids in the order in which one RECEIVE TOP(1) after the other takes them, each committed before the next.

    It chooses as the manual says, each time anew; engines sort instead, see ``exceptions``.

    :param locked: conversation groups that other sessions hold: RECEIVE skips them (spec SB-47).
    """
    waiting = [row for row in rows if row.lock is None or row.lock not in locked]
    order = []
    while waiting:
        received = _received(waiting)
        order.append(received.lookup_id)
        waiting.remove(received)
    return order


def _places(dialog: list[Waiting]) -> Iterable[tuple[int, Place]]:
    """Go through a dialog from the last message to the first: what has been passed is what is still there when a message's turn comes."""
    oldest: int | None = None
    for row in sorted(dialog, key=_in_dialog, reverse=True):
        oldest = row.lookup_id if oldest is None else min(oldest, row.lookup_id)
        if row.precedence != AS_ARRIVED:
            yield row.lookup_id, Place(oldest, row.precedence)


def _received(waiting: list[Waiting]) -> Waiting:
    """Return the next message: of the first group, in it of the first conversation, in it the first (spec SB-48).

    First is the group with the conversation of the highest priority, among equals the one whose such conversation has the oldest message;
    likewise the conversation in the group (section 11.1).
    """
    group = min(_apart(waiting, "lock"), key=lambda rows: min(map(_rank, _apart(rows, "handle"))))
    conversation = min(_apart(group, "handle"), key=_rank)
    return min(conversation, key=_in_dialog)


def _rank(conversation: list[Waiting]) -> tuple[int, int]:
    return -max(row.priority for row in conversation), min(row.lookup_id for row in conversation)


def _in_dialog(row: Waiting) -> tuple[int, int]:
    return row.precedence, row.lookup_id


def _apart(rows: Iterable[Waiting], what: str) -> list[list[Waiting]]:
    """Return rows by lock or by handle; those without one are each by itself."""
    found: dict[object, list[Waiting]] = defaultdict(list)
    for row in rows:
        name = getattr(row, what)
        found[row.lookup_id if name is None else name].append(row)
    return list(found.values())
