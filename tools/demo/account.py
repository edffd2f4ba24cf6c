"""The books of a demo: what each pass says it did, held against what the queue's table holds after it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Depth:
    """Messages in each sub-queue.

    :param at: when the table was so, in seconds since 1970.
    """

    main: int = 0
    retry: int = 0
    poison: int = 0
    at: float = field(default=0.0, compare=False)

    @property
    def total(self) -> int:
        """Messages in the queue."""
        return self.main + self.retry + self.poison


@dataclass(frozen=True, slots=True)
class Taken:
    """What a run has taken from its source, in one commit of the queue: ``read = landed + filtered + messages``.

    :param version: of the queue's table.
    """

    version: int
    read: int
    landed: int
    filtered: int
    messages: int


@dataclass(frozen=True, slots=True)
class Pass:
    """What a receive pass returned.

    :param rest: messages that left the queue in another way than by being settled.
    :param seconds: from its beginning to the final commit, the start of Spark included.
    :param took: whether it took something from its source before.
    :param claims: how many claims it finished: one, and those of killed passes.
    """

    received: int
    settled: int
    parked: int
    poisoned: int
    rest: int
    attempts: int
    seconds: float
    took: bool = False
    claims: int = 1

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Pass:
        """Return the pass of a task's result (``ReceiveResult.to_dict()``)."""
        return cls(
            received=result["received"],
            settled=result["settled"],
            parked=result["parked"],
            poisoned=result["poisoned"],
            rest=sum(result[name] for name in ("dropped", "rejected", "dead_lettered")),
            attempts=result["deliveries"],
            seconds=result["seconds"],
            took=bool(result["in_place"].get("read")),
            claims=result["passes"],
        )


@dataclass(frozen=True, slots=True)
class Cycle:
    """One line of the books.

    :param done: by the pass; of the first one without the time in place.
    :param messages: that the queue had been given until then.
    :param settled: messages settled so far, this pass included.
    :param depth: what the table held right after the pass.
    """

    number: int
    done: Pass
    messages: int
    settled: int
    depth: Depth

    @property
    def total(self) -> int:
        """All messages that are accounted for."""
        return self.settled + self.depth.total


@dataclass(frozen=True, slots=True)
class Books:
    """What was taken, and all cycles of the messages that came of it.

    :param in_place: seconds of the first pass until what succeeds at once was in one commit; None: where another one had taken it.
    :param naive: seconds of the same job without protection; None: not measured.
    """

    taken: tuple[Taken, ...]
    cycles: tuple[Cycle, ...]
    now: Depth
    in_place: float | None = None
    naive: float | None = None

    @property
    def read(self) -> int:
        """Rows that were read."""
        return sum(each.read for each in self.taken)

    @property
    def landed(self) -> int:
        """Rows that landed at once."""
        return sum(each.landed for each in self.taken)

    @property
    def filtered(self) -> int:
        """Rows that the transformation made no row of."""
        return sum(each.filtered for each in self.taken)

    @property
    def messages(self) -> int:
        """Rows that became messages."""
        return sum(each.messages for each in self.taken)

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
            f"after cycle {cycle.number}, {cycle.messages:,} had become messages, and {cycle.total:,} are accounted for "
            f"({cycle.settled:,} settled, {cycle.depth.main:,} in main, {cycle.depth.retry:,} in retry, {cycle.depth.poison:,} in poison)"
            for cycle in self.cycles
            if cycle.total != cycle.messages
        ]
        found += [
            f"{each.read:,} were read, and {each.landed:,} landed, {each.filtered:,} were filtered and {each.messages:,} became messages"
            for each in self.taken
            if each.read != each.landed + each.filtered + each.messages
        ]
        if self.settled + self.now.total != self.messages:
            found.append(f"{self.messages:,} became messages, {self.settled:,} were settled, and the table holds {self.now.total:,}")
        found += [f"cycle {cycle.number} lost {cycle.done.rest:,} messages to another end" for cycle in self.cycles if cycle.done.rest]
        return found


def keep_books(taken: Sequence[Taken], passes: Sequence[Pass], depths: Sequence[Depth], naive: float | None = None) -> Books:
    """Return the books.

    :param passes: what the passes say, oldest first, those that received something.
    :param depths: the table's depth at each of its versions, oldest first. Where ``main`` became smaller, a claim was finished.
    """
    finished = iter([version for version, (before, now) in enumerate(pairwise(depths), start=1) if now.main < before.main])
    cycles: list[Cycle] = []
    settled, in_place = 0, None
    for number, done in enumerate(passes, start=1):
        version = next(reversed([*islice(finished, done.claims)]), -1)
        settled += done.settled
        messages = sum(each.messages for each in taken if version < 0 or each.version <= version)
        rest = done
        if number == 1 and done.took and version >= 0:
            rest = replace(done, seconds=depths[version].at - depths[taken[0].version].at)
            in_place = done.seconds - rest.seconds
        cycles.append(Cycle(number, rest, messages, settled, Depth() if version < 0 else depths[version]))
    return Books(tuple(taken), tuple(cycles), depths[-1] if depths else Depth(), in_place, naive)
