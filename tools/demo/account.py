"""The books of a demo: what each pass says it did, held against what the queue's table holds after it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Depth:
    """Messages in each sub-queue."""

    main: int = 0
    retry: int = 0
    poison: int = 0

    @property
    def total(self) -> int:
        """Messages in the queue."""
        return self.main + self.retry + self.poison


@dataclass(frozen=True, slots=True)
class Pass:
    """What a receive pass returned.

    :param rest: messages that left the queue in another way than by being settled.
    :param seconds: from the claim to the final commit, the start of Spark included.
    :param sent: messages that had been sent when it began.
    :param claims: how many claims it finished: one, and those of killed passes.
    """

    received: int
    settled: int
    parked: int
    poisoned: int
    rest: int
    attempts: int
    seconds: float
    sent: int
    claims: int = 1

    @classmethod
    def of(cls, result: Mapping[str, Any], sent: int) -> Pass:
        """Return the pass of a task's result (``ReceiveResult.to_dict()``)."""
        return cls(
            received=result["received"],
            settled=result["settled"],
            parked=result["parked"],
            poisoned=result["poisoned"],
            rest=sum(result[name] for name in ("dropped", "rejected", "dead_lettered")),
            attempts=result["deliveries"],
            seconds=result["seconds"],
            sent=sent,
            claims=result["passes"],
        )


@dataclass(frozen=True, slots=True)
class Cycle:
    """One line of the books.

    :param settled: messages settled so far, this pass included.
    :param depth: what the table held right after the pass.
    """

    number: int
    done: Pass
    settled: int
    depth: Depth

    @property
    def total(self) -> int:
        """All messages that are accounted for."""
        return self.settled + self.depth.total


@dataclass(frozen=True, slots=True)
class Books:
    """All cycles, and what was sent."""

    sent: int
    cycles: tuple[Cycle, ...]
    now: Depth

    @property
    def settled(self) -> int:
        """Messages that were settled in all."""
        return self.cycles[-1].settled if self.cycles else 0

    @property
    def attempts(self) -> int:
        """Calls of the handler in all."""
        return sum(cycle.done.attempts for cycle in self.cycles)

    @property
    def seconds(self) -> float:
        """Seconds of all passes."""
        return sum(cycle.done.seconds for cycle in self.cycles)

    def faults(self) -> list[str]:
        """Return where the numbers do not add up; empty when they do."""
        found = [
            f"after cycle {cycle.number}, {cycle.done.sent:,} were sent, and {cycle.total:,} are accounted for "
            f"({cycle.settled:,} settled, {cycle.depth.main:,} in main, {cycle.depth.retry:,} in retry, {cycle.depth.poison:,} in poison)"
            for cycle in self.cycles
            if cycle.total != cycle.done.sent
        ]
        if self.settled + self.now.total != self.sent:
            found.append(f"{self.sent:,} were sent, {self.settled:,} settled, and the table holds {self.now.total:,}")
        found += [f"cycle {cycle.number} lost {cycle.done.rest:,} messages to another end" for cycle in self.cycles if cycle.done.rest]
        return found


def keep_books(sent: int, passes: Sequence[Pass], depths: Sequence[Depth]) -> Books:
    """Return the books.

    :param passes: what the passes say, oldest first, those that received something.
    :param depths: the table's depth at each of its versions, oldest first. Where ``main`` became smaller, a claim was finished.
    """
    finished = iter([now for before, now in pairwise(depths) if now.main < before.main])
    cycles: list[Cycle] = []
    settled = 0
    for number, done in enumerate(passes, start=1):
        after = list(islice(finished, done.claims))
        settled += done.settled
        cycles.append(Cycle(number, done, settled, after[-1] if after else Depth()))
    return Books(sent, tuple(cycles), depths[-1] if depths else Depth())
