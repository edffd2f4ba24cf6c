"""One int32 word per message: ``crashes << 20 | attempts << 8 | state``. One word, because a kill between two stores would miscount.

A delivering process stores; nobody else does while it lives. Why a kill between any two stores never miscounts:

* Messages are received in row order, and what is returned goes back to its row. So while a row is open (in flight or held),
  no later row of the batch has been committed by an earlier transaction of this process; what an earlier *try* committed is
  marked ``CARRIED``, another state.
* **Commit.** The members of an open transaction are ``HELD``. The store that turns the *last* member into ``COMMITTED``
  decides; the others follow from the last to the first. A held word is therefore committed exactly when the first row behind the
  held ones (settled rows of earlier times skipped) is ``COMMITTED``.
* **Rollback.** A held word that is not committed belongs to a transaction that was or is being rolled back, and its rollback
  counts one attempt (spec WCF-41). Whoever finds it does what the process would have done: one attempt more, given back. So it does
  not matter how many members the process had reached. The culprit is ``IN_FLIGHT`` until its rollback is stored; found in flight
  it is charged with a crash.
* **Postpone** commits what the transaction had delivered before, as above, and then ends the message by one store.

Texts are appended to the failure log before the word that needs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class State(IntEnum):
    """What has become of a message so far."""

    UNTOUCHED = 0  # not with a handler; with attempts: given back and waiting
    IN_FLIGHT = 1  # with the handler now
    COMMITTED = 2  # the handler returned and its transaction is committed
    ENDED = 3  # rolled back for good, unreadable or postponed; the failure's kind says which
    HALTED = 4  # this message halted the endpoint
    CRASHED = 5  # its last delivery ended the process; waits for the next
    TIMED_OUT = 6  # its last delivery took too long; waits for the next
    HELD = 7  # the handler returned, the transaction is open
    CARRIED = 8  # committed by an earlier try (in journals only, reported as COMMITTED)


STATE_MASK = 0xFF
COUNT_MASK = ~STATE_MASK
MAX_ATTEMPTS = 0xFFF
MAX_CRASHES = 0x7FF
ATTEMPTS_MASK = MAX_ATTEMPTS << 8
"""The bits of the attempts; all of them are set when there can be no more."""
ONE_ATTEMPT = 1 << 8
_ONE_CRASH = 1 << 20

Words = TypeVar("Words", int, "NDArray[np.int32]")

SETTLED = (State.COMMITTED, State.ENDED, State.HALTED, State.CARRIED)
"""States that no delivery follows."""
IS_SETTLED = tuple(number in SETTLED for number in range(STATE_MASK + 1))
"""The same, by the state's number: loops ask it for every message."""


def word(state: State, attempts: int = 0, crashes: int = 0) -> int:
    """Return the word of a state and its counts."""
    return min(crashes, MAX_CRASHES) << 20 | min(attempts, MAX_ATTEMPTS) << 8 | state


def states_of(words: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the states of many words, as numbers."""
    return words & STATE_MASK


def state_of(value: int) -> State:
    """Return a word's state."""
    return State(value & STATE_MASK)


def attempts_of(value: Words) -> Words:
    """Return a word's counted rollbacks, crashes and timeouts included."""
    return value >> 8 & MAX_ATTEMPTS


def crashes_of(value: Words) -> Words:
    """Return how many of a word's rollbacks were a crash or a timeout."""
    return value >> 20


def counted(value: int, state: State, *, crash: bool = False) -> int:
    """Return the word after one more rollback; the counts stop at their largest value."""
    if attempts_of(value) < MAX_ATTEMPTS:
        value += ONE_ATTEMPT
    if crash and crashes_of(value) < MAX_CRASHES:
        value += _ONE_CRASH
    return value & COUNT_MASK | state


def pending(words: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the rows that still have to be delivered."""
    return np.flatnonzero(~np.isin(words & STATE_MASK, SETTLED))


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """What a dead process left open.

    :param in_flight: the rows that were with a handler; several where an endpoint has several server sessions.
    :param held: the rows whose handler had returned.
    :param committed: whether the held ones had been committed.
    """

    in_flight: tuple[int, ...]
    held: tuple[int, ...]
    committed: bool

    @property
    def culprits(self) -> tuple[int, ...]:
        """The rows whose delivery ended a transaction, for the log; none when nothing is rolled back."""
        if self.in_flight or self.committed or not self.held:
            return self.in_flight
        return self.held[-1:]


def left_open(words: NDArray[np.int32]) -> OpenTransaction:
    """Read what a dead process left open in the words of one batch."""
    states = words & STATE_MASK
    held = np.flatnonzero(states == State.HELD)
    flying = np.flatnonzero(states == State.IN_FLIGHT)
    committed = False
    if len(held):
        behind = states[held[-1] + 1 :]
        behind = behind[~np.isin(behind, (State.ENDED, State.HALTED, State.CARRIED))]
        committed = bool(len(behind)) and behind[0] == State.COMMITTED
    return OpenTransaction(tuple(int(row) for row in flying), tuple(int(row) for row in held), committed)


def release(words: NDArray[np.int32]) -> None:
    """Give back what a dead process left open, in place: what had been committed stays so, nothing else is counted."""
    found = left_open(words)
    for row in found.held:
        words[row] = int(words[row]) & COUNT_MASK | (State.COMMITTED if found.committed else State.UNTOUCHED)
    for row in found.in_flight:
        words[row] = int(words[row]) & COUNT_MASK | State.UNTOUCHED


def settle(words: NDArray[np.int32], verdict: State = State.CRASHED) -> OpenTransaction:
    """Finish what a dead process left open, in place, in an order that may itself be interrupted; return what it was.

    :param verdict: CRASHED or TIMED_OUT, for the messages in flight.
    """
    found = left_open(words)
    for row in reversed(found.held):
        value = int(words[row])
        if found.committed:
            words[row] = value & COUNT_MASK | State.COMMITTED
        else:
            words[row] = counted(value, State.UNTOUCHED)
    for row in found.in_flight:
        words[row] = counted(int(words[row]), verdict, crash=True)
    return found
