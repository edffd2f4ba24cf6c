"""Transacted batching: how many messages a transaction takes, and when it falls back to one (spec WCF-40 to WCF-42)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BatchFallback(StrEnum):
    """Which abort of a batch makes the reader go on one message at a time (spec section 11, item 13)."""

    FIRST_ABORT = "first_abort"
    WHEN_POISON = "when_poison"


@dataclass(slots=True)
class BatchSize:
    """The size of the next transaction, kept in memory by an open endpoint.

    :param max_batch_size: 0 or 1 turn batching off.
    :param single_commits: commits since the fallback; None in batch mode.
    """

    max_batch_size: int
    fallback: BatchFallback
    single_commits: int | None = None

    def next(self) -> int:
        """Return how many messages the next transaction may take."""
        return self.max_batch_size if self.max_batch_size > 1 and self.single_commits is None else 1

    def committed(self) -> None:
        """Count a commit; twice the batch size of them in single mode bring batches back."""
        if self.single_commits is None:
            return
        self.single_commits += 1
        if self.single_commits >= 2 * self.max_batch_size:
            self.single_commits = None

    def aborted(self, *, became_poison: bool) -> None:
        """Fall back to single mode; an abort in single mode does not start the count again."""
        if self.single_commits is None and (became_poison or self.fallback is BatchFallback.FIRST_ABORT):
            self.single_commits = 0
