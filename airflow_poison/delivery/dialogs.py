"""The conversations of one task: what its messages find of them, and what became of them.

The rules decide on a message when it is received, by the endpoint as the messages before it left it. What a delivery does is written to the
journal's log, then the message's word says that it is committed, and only then others see it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_poison.delivery.failurelog import FailureLog, LoggedEffect, Needs, line_of, mark_of
from airflow_poison.delivery.journal import MessageState, state_of
from airflow_poison.dialogs import arrivals
from airflow_poison.dialogs.acts import Change, ConversationEndpoint, Envelope, Outgoing
from airflow_poison.dialogs.arrivals import Discarded, Handed, Reception
from airflow_poison.dialogs.system_messages import is_system
from airflow_poison.dialogs.transaction import BegunDelivery, DialogState
from airflow_poison.values.fault_points import reach
from airflow_poison.values.schema import DEFAULT_PRIORITY

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.delivery.recovered import RecoveredAttempts
    from airflow_poison.dialogs.services import Service

_SETTLED = {MessageState.COMMITTED: Needs.COMMITTED, MessageState.CARRIED: Needs.COMMITTED, MessageState.ENDED: Needs.ENDED}


@dataclass(frozen=True, slots=True)
class Conversed:
    """What became of conversations in a batch.

    :param sent: in order; what has a local envelope is for this side's own queue.
    :param endpoints: the newest version of each that has changed.
    :param discarded: messages that no handler got, because of the state of their conversation.
    :param savepoints: deliveries that were rolled back to their savepoint, and whose transaction committed.
    """

    sent: tuple[Outgoing, ...] = ()
    endpoints: tuple[ConversationEndpoint, ...] = ()
    discarded: int = 0
    savepoints: int = 0


class Dialogs:
    """The conversation endpoints of a claim.

    :param log: of the journal.
    :param recovered: what earlier tries did.
    """

    def __init__(self, dialog_state: DialogState, recovered: RecoveredAttempts, log: FailureLog) -> None:
        self._dialog_state, self._recovered, self._log = dialog_state, recovered, log
        self._endpoints: dict[str, ConversationEndpoint | None] = {}
        self._logged: dict[str, list[LoggedEffect]] = defaultdict(list)
        for logged in recovered.effects:
            self._logged[logged.effect.handle].append(logged)
        self._known: set[tuple[int, str]] = set()
        self._batch: pa.RecordBatch | None = None
        self._messages: dict[int, Outgoing] = {}
        self._ids: list[int] = []
        self._begun: dict[int, BegunDelivery] = {}
        self._sent: list[Outgoing] = []
        self._changed: set[str] = set()
        self._discarded = self._savepoints = 0

    @property
    def services(self) -> Mapping[str, Service]:
        """The queue's services, by name."""
        return self._dialog_state.services

    # Batches -----------------------------------------------------------------------------------------------------

    def load(self, batch: pa.RecordBatch, lookup_ids: NDArray[np.int64]) -> list[int]:
        """Go on with another batch. Return the rows that have to be delivered again: committed, and what they did is not known."""
        self._batch, self._messages, self._ids, self._begun = batch, dict(_messages_of(batch)), lookup_ids.tolist(), {}
        for message in sorted(self._messages.values(), key=_begins_none):
            self._open(message)
        return [row for row in self._messages if self._is_lost(self._ids[row])]

    def take(self) -> Conversed:
        """Return what became of conversations since the last time."""
        changed = (self._endpoints[handle] for handle in sorted(self._changed))
        endpoints = tuple(endpoint for endpoint in changed if endpoint is not None)
        conversed = Conversed(tuple(self._sent), endpoints, self._discarded, self._savepoints)
        self._sent, self._changed = [], set()
        self._discarded = self._savepoints = 0
        return conversed

    def _open(self, message: Outgoing) -> None:
        """Find the endpoint of a conversation, with what earlier tries did.

        The first message of a dialog creates it where it arrives; what goes before that message, or without it, finds it there.
        """
        handle, dialog_state = message.envelope.to_handle, self._dialog_state
        if self._endpoints.get(handle) is None:
            stored = dialog_state.endpoints.get(handle) or dialog_state.begun.get(handle) or arrivals.begun_with(message)
            self._endpoints[handle] = stored
            for logged in self._followed(handle, stored):
                self._known.add((logged.effect.lookup_id, logged.effect.needs))
                self._apply(logged.change())

    def _followed(self, handle: str, stored: ConversationEndpoint | None) -> Iterator[LoggedEffect]:
        """Yield the effects of earlier tries that count, each made of the result of the one before it."""
        by_mark = {each.effect.before: each for each in self._logged.get(handle, ()) if self._counts(each)}  # the last one that was made of each
        mark = mark_of(stored)
        while (following := by_mark.pop(mark, None)) is not None:
            yield following
            mark = following.effect.after

    def _counts(self, logged: LoggedEffect) -> bool:
        needs = logged.effect.needs
        return not needs or _SETTLED.get(self._state_of(logged.effect.lookup_id)) == needs

    def _state_of(self, lookup_id: int) -> MessageState:
        return state_of(self._recovered.word_of(lookup_id))

    def _is_lost(self, lookup_id: int) -> bool:
        return self._state_of(lookup_id) is MessageState.CARRIED and (lookup_id, Needs.COMMITTED) not in self._known

    # Messages ----------------------------------------------------------------------------------------------------

    def receive(self, row: int, now: datetime) -> Discarded | None:
        """Decide what receiving a message does; None: it is handed over, or belongs to no dialog.

        What a discarded message does to its conversation counts from now on, whatever becomes of its word: asked again, it is discarded again.
        """
        if row not in self._messages:
            return None
        saved, reception = self._reception(row)
        if isinstance(reception, Discarded):
            self._discarded += 1
            if reception.change is not None:
                self._note(row, reception.change, Needs.NOTHING)
            return reception
        assert saved is not None, "a message is handed over by an endpoint"
        self._begun[row] = BegunDelivery(saved, reception.endpoint, now)
        return None

    def _reception(self, row: int) -> tuple[ConversationEndpoint | None, Reception]:
        """Return the endpoint with what has arrived, and what it makes of a message."""
        assert self._batch is not None, "a batch is loaded before its messages are received"
        message = replace(self._messages[row], body=self._batch.column("body")[row].as_py() or b"")
        handle = message.envelope.to_handle
        stored, waiting = self._endpoints[handle], self._dialog_state.waiting.get(handle, ())
        self._keep(handle)
        saved = arrivals.arrived(stored, waiting) if stored is not None and stored.is_open else stored
        return saved, arrivals.receive(saved, message, self.services, waiting=waiting)

    def _keep(self, handle: str) -> None:
        """Store an endpoint that is new: its first message may leave without having been processed, and others come behind it."""
        if handle not in self._dialog_state.endpoints and self._endpoints[handle] is not None:
            self._changed.add(handle)

    def begun(self, row: int) -> BegunDelivery | None:
        """Return how the delivery of a message begins; None: it belongs to no dialog."""
        return self._begun.get(row)

    def written(self, row: int, change: Change | None) -> Change | None:
        """Write down what a delivery that is about to commit did, the receive included; None: its message belongs to no dialog.

        It counts when the word of its message says so.
        """
        begun = self._begun.get(row)
        if begun is None:
            return None
        done = change or Change(begun.handed)
        self._write(row, done, Needs.COMMITTED)
        return done

    def committed(self, change: Change | None) -> None:
        """Let others see what a delivery did whose word says that it is committed."""
        if change is not None:
            self._apply(change)

    def back_at_savepoint(self, row: int, change: Change | None) -> None:
        """Write down and let others see what a transaction did since its savepoint; it commits, and its message is back (spec SB-58)."""
        self._savepoints += 1
        self.done(row, change)

    def done(self, row: int, change: Change | None) -> None:
        """Write down and let others see what was done that counts whatever becomes of its message."""
        if change is not None:
            self._note(row, change, Needs.NOTHING)

    def left(self, row: int, *, for_good: bool) -> None:
        """Take note of a message that leaves its queue without having been processed.

        An application's message counts as not received: it may come back, from a sub-queue or moved by a person. A system message says
        the state of the dialog: put to rest it counts as received; else the endpoint remembers that it has arrived.

        :param for_good: it is in no sub-queue that it comes back from.
        """
        begun, message = self._begun.pop(row, None), self._messages.get(row)
        if begun is None or message is None or is_system(message.message_type) is None:
            return
        stored = self._endpoints[message.envelope.to_handle]
        assert stored is not None, "a message is handed over by an endpoint"
        after = begun.handed if for_good else arrivals.remembered(stored, message)
        if after != stored:
            self._note(row, Change(after), Needs.ENDED if for_good else Needs.NOTHING)

    def had_left(self, row: int, *, for_good: bool, now: datetime) -> None:
        """Take note of a message that left in an earlier try, where what that meant for its conversation has been lost."""
        message, needs = self._messages.get(row), Needs.ENDED if for_good else Needs.NOTHING
        if message is None:
            return
        self._keep(message.envelope.to_handle)
        if is_system(message.message_type) is None or (self._ids[row], needs) in self._known:
            return
        saved, reception = self._reception(row)
        if saved is not None and isinstance(reception, Handed):
            self._begun[row] = BegunDelivery(saved, reception.endpoint, now)
            self.left(row, for_good=for_good)

    # Effects -----------------------------------------------------------------------------------------------------

    def _note(self, row: int, change: Change, needs: Needs) -> None:
        self._write(row, change, needs)
        self._apply(change)

    def _write(self, row: int, change: Change, needs: Needs) -> None:
        lookup_id = self._ids[row]
        reach("delivery.dialogs.before_effect")
        self._log.append_effect(lookup_id, line_of(lookup_id, self._endpoints.get(change.endpoint.handle), change, needs))
        reach("delivery.dialogs.after_effect")

    def _apply(self, change: Change) -> None:
        handle = change.endpoint.handle
        self._endpoints[handle] = change.endpoint
        self._changed.add(handle)
        self._sent += change.sent


def _messages_of(batch: pa.RecordBatch) -> Iterator[tuple[int, Outgoing]]:
    """Yield the rows of a batch that belong to dialogs, with their messages but for the bodies; an envelope that cannot be read makes no dialog."""
    kinds, priorities = (batch.column(name) for name in ("message_type", "priority"))
    for row, properties in enumerate(batch.column("properties").to_pylist()):
        if (envelope := Envelope.of(dict(properties or ()))) is not None:
            yield row, Outgoing(envelope, kinds[row].as_py() or "", priority=priorities[row].as_py() or DEFAULT_PRIORITY)


def _begins_none(message: Outgoing) -> bool:
    return arrivals.begun_with(message) is None
