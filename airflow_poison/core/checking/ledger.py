"""Conservation: what came in, what went out and how, commit by commit, from the numbers of the log alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_poison.core.checking.findings import REPORT, Finding, Kind, Severity
from airflow_poison.core.delivery.stage import KEPT, LEFT, SENT_ON
from airflow_poison.core.schema import OUTBOX, SubQueue
from airflow_poison.core.store.log import SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_poison.core.store.delta.past import Past, Version
    from airflow_poison.core.store.files import DataFile

MESSAGES = frozenset(place.value for place in SubQueue)


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the messages. ``sent = settled + dropped + sent_on + removed + foreign + lost + waiting + before + unaccounted``.

    :param sent: messages that were ever given a lookup id.
    :param settled: left because their handler returned; also those of passes that say nothing of how.
    :param dropped: disposed of by a policy.
    :param sent_on: left through the outbox.
    :param removed: taken out by people.
    :param foreign: taken out (or, below 0, put in) by somebody else's commits.
    :param lost: their files or commits were damaged, and people accepted the loss.
    :param waiting: in the queue now.
    :param before: left before the history that the log still has.
    :param unaccounted: nobody knows; 0 unless something is wrong.
    """

    sent: int = 0
    settled: int = 0
    dropped: int = 0
    sent_on: int = 0
    removed: int = 0
    foreign: int = 0
    lost: int = 0
    waiting: int = 0
    before: int = 0
    unaccounted: int = 0

    def to_dict(self) -> dict[str, int]:
        """Return plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Step:
    """One version, with what it did to messages.

    :param removed: the files of messages that it took out; ``added``: those it put in. Both with the outbox.
    :param unknown: paths that it removed although they were not there.
    :param known: paths that it added although they were there.
    """

    entry: Version
    removed: tuple[DataFile, ...]
    added: tuple[DataFile, ...]
    unknown: tuple[str, ...]
    known: tuple[str, ...]
    last_id: int

    def gained(self, places: frozenset[str]) -> int:
        """Return by how many rows these partitions grew."""
        return _rows(self.added, places) - _rows(self.removed, places)

    @property
    def inside(self) -> int:
        """By how many messages the queue grew."""
        return self.gained(MESSAGES)

    @property
    def outside(self) -> int:
        """By how many rows the outbox grew."""
        return self.gained(frozenset({OUTBOX}))


def steps(past: Past) -> Iterator[Step]:
    """Yield what each version did."""
    live, last = dict(past.base), past.base_numbers.get(SEQUENCE, 0)
    for entry in past.entries:
        unknown = tuple(path for path in entry.removes if path not in live)
        removed = tuple(live.pop(path) for path in entry.removes if path in live)
        known = tuple(file.path for file in entry.adds if file.path in live)
        yield Step(entry, _of_messages(removed), _of_messages(entry.adds), unknown, known, last)
        live.update((file.path, file) for file in entry.adds)
        last = entry.numbers.get(SEQUENCE, last)


def _of_messages(files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    return tuple(file for file in files if file.sub_queue in MESSAGES or file.sub_queue == OUTBOX)


def _rows(files: Iterable[DataFile], places: frozenset[str]) -> int:
    return sum(file.rows for file in files if file.sub_queue in places)


# Every commit ---------------------------------------------------------------------------------------------------------


def check_steps(found: Iterable[Step]) -> Iterator[Finding]:
    """Yield what commits of ours cannot have done, and passes that do not add up."""
    for step in found:
        if step.entry.ours:
            yield from (finding_of(step, Kind.HISTORY_IMPOSSIBLE, what) for what in _impossible(step))
            problem = _problem(step)
            if problem:
                yield finding_of(step, Kind.NOT_CONSERVED, problem)


def finding_of(step: Step, kind: Kind, what: str) -> Finding:
    """Return what is wrong with a commit."""
    key = step.entry.details.get("key")
    whose = f" of {key}" if key else ""
    return Finding(kind, Severity.ERROR, f"the commit '{step.entry.operation}'{whose} {what}", f"version {step.entry.version}", REPORT)


def _impossible(step: Step) -> Iterator[str]:
    if step.unknown:
        yield f"removed {len(step.unknown)} file(s) that were not there, such as {step.unknown[0]}"
    if step.known:
        yield f"added {len(step.known)} file(s) that were there already, such as {step.known[0]}"


def _problem(step: Step) -> str:
    """Return why a commit's numbers do not add up; empty when they do."""
    match step.entry.operation:
        case "append":
            return _of_append(step)
        case "finish":
            return _of_pass(step)
        case "replace" | "transact" | "lose":
            return _of_replacement(step)
        case "remove_outbox":
            return f"changed the queue by {step.inside} messages" if step.inside or step.outside > 0 else ""
        case "restore" | "accept":
            return ""  # undoes what somebody else did, or lets it stand
    return f"changed the queue by {step.inside} messages and the outbox by {step.outside}" if step.inside or step.outside else ""


def _of_append(step: Step) -> str:
    numbers, last = step.entry.numbers, step.last_id
    said = next((number for name, number in numbers.items() if name.startswith("send:")), 0)
    assigned = numbers.get(SEQUENCE, last) - last
    if not said == assigned == step.inside or step.outside:
        return f"says that it sent {said} messages, assigned {assigned} lookup ids and added {step.inside} messages"
    ends = [(file.min_lookup_id, file.max_lookup_id) for file in sorted(step.added, key=lambda file: file.min_lookup_id)]
    for low, high in ends:
        if low != last + 1:
            return f"added lookup ids from {low} on where {last + 1} was next"
        last = high
    return "" if last == numbers.get(SEQUENCE, last) else f"added lookup ids up to {last}, and says {numbers[SEQUENCE]}"


def counts_of(step: Step) -> Mapping[str, int] | None:
    """Return what a pass says it did; None for one that says nothing."""
    counts: Any = (step.entry.details.get("result") or {}).get("counts")
    return Counter(counts) if isinstance(counts, dict) else None


def _of_pass(step: Step) -> str:
    counts = counts_of(step)
    claimed = _rows(step.removed, MESSAGES - {SubQueue.TRANSMISSION.value})
    if counts is None:
        return f"put {step.inside + step.outside} more messages in than it took" if step.inside + step.outside > 0 else ""
    kept, left = sum(counts[name] for name in KEPT), sum(counts[name] for name in LEFT)
    if not claimed == counts["received"] == counts["committed"] + kept + left:
        return f"took {claimed} messages and says received {counts['received']} = settled {counts['committed']} + kept {kept} + left {left}"
    staged, sent = claimed + step.inside, sum(counts[name] for name in SENT_ON) + counts["reports"]
    if staged != kept or step.outside != sent:
        return f"put {staged} messages back and {step.outside} into the outbox, and says {kept} and {sent}"
    return ""


def _of_replacement(step: Step) -> str:
    gone, said = -(step.inside + step.outside), step.entry.details.get("removed")
    if isinstance(said, int) and gone != said:
        return f"took {gone} messages out, and says {said}"
    return f"put {-gone} more messages in than it took" if gone < 0 else ""


# All of them ----------------------------------------------------------------------------------------------------------


def account(past: Past, found: Iterable[Step]) -> Account:
    """Return what became of every message that was ever sent."""
    total = Account(
        sent=past.numbers().get(SEQUENCE, 0),
        before=past.base_numbers.get(SEQUENCE, 0) - _rows(past.base.values(), MESSAGES),
        waiting=_rows(past.live().values(), MESSAGES),
    )
    for step in found:
        total = _plus(total, step)
    known = total.settled + total.dropped + total.sent_on + total.removed + total.foreign + total.lost + total.waiting + total.before
    return replace(total, unaccounted=total.sent - known)


def _plus(total: Account, step: Step) -> Account:
    gone = -step.inside
    if not step.entry.ours or step.entry.operation == "restore":
        return replace(total, foreign=total.foreign + gone)
    if step.entry.operation == "finish":
        counts = counts_of(step) or Counter(committed=gone - step.outside, exceptioned=step.outside)
        return replace(
            total,
            settled=total.settled + counts["committed"],
            dropped=total.dropped + counts["dropped"],
            sent_on=total.sent_on + sum(counts[name] for name in SENT_ON),
        )
    if step.entry.operation == "lose":
        return replace(total, lost=total.lost - step.inside)
    if step.entry.operation == "lost":  # in the place of commits that are gone: their messages had these lookup ids
        return replace(total, lost=total.lost + step.entry.numbers.get(SEQUENCE, step.last_id) - step.last_id)
    if step.entry.operation in {"replace", "transact"}:
        return replace(total, sent_on=total.sent_on + step.outside, removed=total.removed + gone - step.outside)
    return total


def check_account(total: Account) -> Iterator[Finding]:
    """Yield what is missing, or too much, in the end."""
    if total.unaccounted:
        few = "are missing: nothing tells where they went" if total.unaccounted > 0 else "are too many: nothing tells where they came from"
        what = f"{abs(total.unaccounted)} of {total.sent} messages that were ever sent {few}"
        yield Finding(Kind.MESSAGES_MISSING, Severity.ERROR, what, "", REPORT)
