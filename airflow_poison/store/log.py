"""The seam between a queue table and the log that decides which of its files count.

Two logs stand behind it: Delta's (``delta.log``) and one in memory (``memory``).
A log knows versions, files and numbers by name; it knows nothing of messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence
    from datetime import timedelta

    from airflow_poison.store.files import DataFile, Shortened

SEQUENCE = "seq"
"""The number of the queue's last lookup id; never forgotten."""


class LogState(Protocol):
    """One version of the log."""

    @property
    def version(self) -> int:
        """Its number; the next commit that succeeds makes the following one."""

    @property
    def files(self) -> Sequence[DataFile]:
        """Every live file of every partition, in no order."""

    def paths(self, sub_queue: str) -> Sequence[str]:
        """Return the paths of the live files of one partition, without the cost of listing all others."""

    def number(self, name: str) -> int | None:
        """Return the number last committed under a name; None when there is none."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One change of the log, all or nothing.

    :param operation: what it is, for the history and the fault points.
    :param numbers: numbers that are set by name; the log forgets them when they have not been set for long (Delta's: 30 days).
    :param lasting: numbers that are set by name and never forgotten.
    :param details: further facts, JSON, kept with the version.
    :param data_change: False when the rows stay the same (a split).
    :param scratch: added files that only this try can use; removed when another commit was faster.
    """

    operation: str
    add: Sequence[DataFile] = ()
    remove: Sequence[DataFile] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    lasting: Mapping[str, int] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)
    data_change: bool = True
    scratch: Sequence[DataFile] = ()


class Log(Protocol):
    """Versions of one table."""

    def identity(self) -> str:
        """Return the table's identity, under any name and place; a copy has the same."""

    def load(self) -> LogState:
        """Return the newest version. Raises TableChangedError when it cannot be read."""

    def mark(self, version: int) -> Hashable | None:
        """Return a version's identity, while it is the newest; None when it is not. Reads nothing."""

    def commit(self, base: LogState, commit: Commit) -> bool:
        """Make the version after ``base``; False when another process has made it, and then nothing happened.

        Raises TableChangedError when a file to be added is not there, StoreUnreachableError when the log cannot be written.
        """

    def removals(self) -> Mapping[str, float]:
        """Return when files were removed from the table, in seconds since 1970 of the machine, as far back as the log goes."""

    def shorten(self, retention: timedelta) -> Shortened:
        """Write a checkpoint and remove what is needed for no version that was the newest at some time within the retention."""

    def confirm(self, state: LogState) -> None:
        """Make a version as durable as one's own commit is: its maker may have died before it did so.

        Called before an answer is given that rests on another process's version: the work has been done already.
        """

    def files_at(self, version: int) -> Sequence[DataFile] | None:
        """Return the live files of an earlier version; None when the log does not have it any more. Changes nothing."""

    def details(self, version: int) -> Mapping[str, object] | None:
        """Return the details committed with a version; None when the log keeps them no longer."""
