"""Who is blamed when everything dies: the earlier tries of a claim, looked at one by one, and what the next one must take care of.

A try is the work of one holder of a claim; its journals lie in one folder. When it ends with

* **one** transaction open, the message in flight is charged with a crash (its batch with a rollback, spec WCF-41);
* **several** open, nobody is charged: a broker that is started again rolls open transactions back without counting. The messages that were
  in flight are *suspects*. They are delivered alone, so the next death has one in flight. That one is charged, for the earlier deaths in
  which it was a suspect, too.

A machine that is lost takes with it what its kernel had not written to disk yet. What its journals say to have happened has happened, but
marks of messages in flight may be old, so nobody is charged for them; only what was forced to disk tells who was alone with the handler.
Everything is computed again by each holder, from all folders in order: each comes to the same words.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np

from airflow_poison.core.delivery.sessions import platform
from airflow_poison.core.delivery.sessions.output import last_output
from airflow_poison.core.delivery.sessions.recovered import RecoveredAttempts, Texts, merged
from airflow_poison.core.delivery.sessions.tries import BEGUN, Forced, TryNote, dead_with_work, read_try
from airflow_poison.core.delivery.sessions.words import IS_SETTLED, STATE_MASK, State, attempts_of, counted, pending, release, settle
from airflow_poison.core.errors import ServerSessionError
from airflow_poison.core.failures import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from airflow_poison.core.delivery.sessions.tries import Left, Open

KILLED = Failure(FailureKind.CRASH, "killed", "Every process of the task ended while this message was with the handler.")
INTERRUPTED = Failure(FailureKind.CRASH, "killed", "Every process of the task ended while the transaction of this message was open.")
PATIENCE = timedelta(seconds=60)
MOST_UNEXPLAINED = 2
"""From so many tries on that ended on a lost machine, and nobody knows why, journals are forced to disk."""


@dataclass(frozen=True, slots=True)
class Story:
    """What the earlier tries of a claim tell the next one.

    :param alone: lookup ids of messages to deliver alone: in flight when a whole try died, and nothing has become of them since; ascending.
    :param careful: journals were lost with machines so often that this try forces its own to disk.
    :param outdated: some of the suspects were found in journals whose marks may be old.
    """

    carry: RecoveredAttempts
    alone: tuple[int, ...] = ()
    careful: bool = False
    outdated: bool = False


def read_story(folders: Iterable[Path], wait: timedelta = PATIENCE) -> Story:
    """Read the journal folders of a claim's earlier holders, oldest first.

    :param wait: how long to wait for journals whose writers still live, at least zero.
    :raises ServerSessionError: a writer still lives when the time is over.
    """
    deadline, account, here = time.monotonic() + wait.total_seconds(), _Account(), platform.machine()
    for folder in folders:
        account.add(read_try(folder, deadline), TryNote.read(folder.parent / BEGUN), here)
    return account.story()


def read_journals(folders: Iterable[Path], wait: timedelta = PATIENCE) -> RecoveredAttempts:
    """Return what these folders say of messages, each the journals of one try on this machine."""
    deadline, account = time.monotonic() + wait.total_seconds(), _Account()
    for folder in folders:
        account.add(read_try(folder, deadline), None, "")
    return account.carry


def read_partition(folder: Path, partition: str, wait: timedelta = PATIENCE) -> RecoveredAttempts:
    """Return what earlier attempts of one task of this very try have done (Spark runs a task again when its executor is lost).

    :raises ServerSessionError: others have died with it, so nobody knows whose fault that was; or a writer still lives.
    """
    left = read_try(folder, time.monotonic() + wait.total_seconds(), partition)
    opens = left.opens()
    together = dead_with_work(folder, partition) if opens else []
    if sum(each.transactions for each in opens) > 1 or together:
        raise ServerSessionError(
            "Several messages were with their handlers when tasks of this pass died, and nobody knows yet which of them did it. "
            "Nothing is lost, nobody is charged: run the Airflow task again, it delivers them one at a time."
        )
    account = _Account()
    account.add(left, None, "")
    return account.carry


@dataclass(slots=True)
class _Account:
    """The verdicts so far.

    :ivar deaths: uncharged whole deaths at which a message was in flight, by lookup id.
    :ivar counted: the attempts that a message had when it was last in flight at one; it is looked at until it has more, or is settled.
    :ivar unexplained: the suspects of each try that ended on a lost machine, until one of them is charged.
    """

    carry: RecoveredAttempts = field(default_factory=RecoveredAttempts)
    deaths: Counter[int] = field(default_factory=Counter)
    counted: dict[int, int] = field(default_factory=dict)
    unexplained: list[frozenset[int]] = field(default_factory=list)
    careful: bool = False
    outdated: bool = False

    def story(self) -> Story:
        """Return what is known when the next try begins."""
        careful = self.careful or len(self.unexplained) >= MOST_UNEXPLAINED
        return Story(self.carry, tuple(sorted(self.counted)), careful, self.outdated)

    def add(self, left: Left, begun: TryNote | None, here: str) -> None:
        """Judge one more try."""
        verdict = _Verdict(left, self.deaths)
        lost = begun is not None and begun.machine != here
        if begun is not None and begun.forced is not Forced.NOTHING:
            self.careful = True
        if lost and begun is not None and begun.forced is not Forced.MARKS:
            self.outdated = True
            if not verdict.of_forced(every=begun.forced is Forced.SECTIONS) and begun.forced is Forced.NOTHING:
                self.unexplained.append(verdict.of_old_marks())
        else:
            verdict.of_marks()
        self._take(verdict)

    def _take(self, verdict: _Verdict) -> None:
        self.carry = self.carry.merged(verdict.carry())
        for lookup_id in verdict.suspects:
            self.deaths[lookup_id] += 1
            self.counted[lookup_id] = attempts_of(self.carry.word_of(lookup_id))
        if verdict.charged is not None:
            del self.deaths[verdict.charged]
            self.counted[verdict.charged] = attempts_of(self.carry.word_of(verdict.charged))
            self.unexplained = [suspects for suspects in self.unexplained if verdict.charged not in suspects]
        for lookup_id, attempts in list(self.counted.items()):
            value = self.carry.word_of(lookup_id)
            if IS_SETTLED[value & STATE_MASK] or attempts_of(value) > attempts:
                del self.counted[lookup_id], self.deaths[lookup_id]


class _Verdict:
    """On one try.

    :param deaths: uncharged whole deaths before it, by lookup id.
    :ivar charged: who is charged with this try's death.
    :ivar suspects: who may have caused it.
    """

    def __init__(self, left: Left, deaths: Counter[int]) -> None:
        self._left, self._deaths = left, deaths
        self._failures: dict[int, Failure] = {}
        self.charged: int | None = None
        self.suspects: frozenset[int] = frozenset()

    def of_marks(self) -> None:
        """Judge by the marks of messages in flight: they are true."""
        opens = self._left.opens()
        if sum(each.transactions for each in opens) == 1:
            self._charge_open(opens[0].section)
        else:
            self.suspects = self._in_flight(opens)

    def of_forced(self, *, every: bool) -> bool:
        """Judge by the last section that was forced to disk; False when there is none, or all of it is settled.

        :param every: all of them were; else only those of messages that were delivered alone, and none if others came after them.
        """
        sections = self._left.sections
        if not sections or not (every or all(section.alone for section in sections)):
            return False
        ids, words = sections[-1].ids, sections[-1].words
        rows = pending(words)
        if len(ids) == 1 and len(rows):
            words[0] = int(words[0]) & ~STATE_MASK | State.IN_FLIGHT
            self._charge_open(len(sections) - 1)
        else:
            self.suspects = frozenset(ids[rows].tolist())
        return bool(len(rows))

    def of_old_marks(self) -> frozenset[int]:
        """Suspect whoever was in flight when the marks were written."""
        self.suspects = self._in_flight(self._left.opens())
        return self.suspects

    def carry(self) -> RecoveredAttempts:
        """Return what the try says of its messages, nothing open any more."""
        left = self._left
        for section in left.sections:
            release(section.words)
        ids = np.concatenate([np.empty(0, np.int64), *(section.ids for section in left.sections)])
        words = np.concatenate([np.empty(0, np.int32), *(section.words for section in left.sections)])
        texts = Texts({**left.texts.failures, **self._failures}, left.texts.halts, effects=left.texts.effects)
        return merged(ids, words, texts, len(left.texts.timeouts))

    def _in_flight(self, opens: Iterable[Open]) -> frozenset[int]:
        return frozenset(int(self._left.sections[each.section].ids[row]) for each in opens for row in each.rows)

    def _charge_open(self, section: int) -> None:
        ids, words, path = self._left.sections[section]
        found = settle(words)
        what = KILLED if found.in_flight else INTERRUPTED
        charged = (int(ids[row]) for row in found.culprits)
        self._failures |= {lookup_id: replace(what, trace=last_output(path, lookup_id)) for lookup_id in charged}
        for row in found.in_flight:
            self.charged = int(ids[row])
            for _ in range(self._deaths[self.charged]):
                words[row] = counted(int(words[row]), State.CRASHED, crash=True)
