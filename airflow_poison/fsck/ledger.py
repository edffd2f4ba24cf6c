"""Conservation: what came in, what went out and how, commit by commit: from the numbers of the log, then message by message where files remain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_poison.delivery.stage import KEPT, LEFT_THE_QUEUE, SENT_ON
from airflow_poison.fsck.files import REPORT, Finding, Kind, Severity
from airflow_poison.store.data_files import commit_version, partition_of, read_columns
from airflow_poison.store.disk import LocalFolder
from airflow_poison.store.files import COUNTS, SEQUENCE, DataFile
from airflow_poison.values.errors import TableChangedError
from airflow_poison.values.libraries import pa, pq
from airflow_poison.values.schema import CONVERSATION, LANDING, OUTBOX, PLAN, SOURCE, TRANSMISSION_QUEUE, SubQueue
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_poison.store.past import Past, Version

    Numbers = NDArray[np.int64]


MESSAGES = frozenset(place.value for place in SubQueue)


@dataclass(frozen=True, slots=True)
class Account(Plain):
    """What became of the messages. ``sent = settled + dropped + sent_on + removed + foreign + lost + waiting + before + unaccounted``.

    :param sent: messages that were ever given a lookup id.
    :param settled: left because their handler returned; also in passes that do not say how.
    :param dropped: disposed of by a policy.
    :param sent_on: left through the outbox.
    :param removed: taken out by people.
    :param foreign: taken out (or, below 0, put in) by commits of other programs.
    :param lost: their files or commits were damaged, and people accepted the loss.
    :param waiting: in the queue now.
    :param before: left before the history that the log still has.
    :param unaccounted: neither; 0 unless something is wrong.
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
    live, last = {file.path: file for file in past.base.adds}, past.base.numbers.get(SEQUENCE, 0)
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
    known = {"append": _of_append, "finish": _of_pass, "replace": _of_replacement, "transact": _of_replacement, "lose": _of_replacement}
    match step.entry.operation:
        case operation if operation in known:
            return known[operation](step)
        case "remove_outbox":
            return f"changed the queue by {step.inside} messages" if step.inside or step.outside > 0 else ""
        case "bring_back" | "remove_landings" if step.inside == step.entry.details.get("brought_back", 0) and not step.outside:
            return ""
        case "restore" | "accept":
            return ""  # undoes what another program did, or accepts it
    return f"changed the queue by {step.inside} messages and the outbox by {step.outside}" if step.inside or step.outside else ""


def _of_append(step: Step) -> str:
    numbers, last = step.entry.numbers, step.last_id
    sent = next((number for name, number in numbers.items() if name.startswith("send:")), 0)
    assigned = numbers.get(SEQUENCE, last) - last
    if not sent == assigned == step.inside or step.outside:
        return f"says that it sent {sent} messages, assigned {assigned} lookup ids and added {step.inside} messages"
    read, landed, filtered = (next((number for name, number in numbers.items() if name.startswith(f"{count}:")), 0) for count in COUNTS)
    if read and read != landed + filtered + sent:
        return f"read {read} rows in place, and says landed {landed} + filtered {filtered} + messages {sent}"
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
    kept, left = sum(counts[name] for name in KEPT), sum(counts[name] for name in LEFT_THE_QUEUE)
    if not claimed == counts["received"] == counts["committed"] + kept + left:
        return f"took {claimed} messages and says received {counts['received']} = settled {counts['committed']} + kept {kept} + left {left}"
    staged, sent = claimed + step.inside, sum(counts[name] for name in SENT_ON) + counts["reports"]
    if staged != kept or step.outside != sent:
        return f"put {staged} messages back and {step.outside} into the outbox, and says {kept} and {sent}"
    return ""


def _of_replacement(step: Step) -> str:
    gone, removed = -(step.inside + step.outside), step.entry.details.get("removed")
    if isinstance(removed, int) and gone != removed:
        return f"took {gone} messages out, and says {removed}"
    return f"put {-gone} more messages in than it took" if gone < 0 else ""


# All of them ----------------------------------------------------------------------------------------------------------


def account(past: Past, found: Iterable[Step]) -> Account:
    """Return what became of every message that was ever sent."""
    total = Account(
        sent=past.numbers().get(SEQUENCE, 0),
        before=past.base.numbers.get(SEQUENCE, 0) - _rows(past.base.adds, MESSAGES),
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
    if step.entry.operation in {"lose", "remove_landings"}:  # of these messages, what an output has refused is settled no more
        name = "lost" if step.entry.operation == "lose" else "settled"
        return replace(total, **{name: getattr(total, name) + gone})
    if step.entry.operation == "lost":  # in the place of commits that are gone: their messages had these lookup ids
        return replace(total, lost=total.lost + step.entry.numbers.get(SEQUENCE, step.last_id) - step.last_id)
    if step.entry.operation in {"replace", "transact", "bring_back"}:
        return replace(total, sent_on=total.sent_on + step.outside, removed=total.removed + gone - step.outside)
    return total


def check_account(total: Account) -> Iterator[Finding]:
    """Yield what is missing, or too much, in the end."""
    if total.unaccounted:
        few = "are missing: nothing tells where they went" if total.unaccounted > 0 else "are too many: nothing tells where they came from"
        what = f"{abs(total.unaccounted)} of {total.sent} messages that were ever sent {few}"
        yield Finding(Kind.MESSAGES_MISSING, Severity.ERROR, what, "", REPORT)


# Messages one by one, as far as files of both sides of a commit are still there: none is made up or doubled, no count falls -


_COUNTED = frozenset({"finish", "split", "compact"})
"""Commits in which no count may fall. People, and a restart of the broker, do reset counts: those are replacements."""
_WRITING = _COUNTED | {"replace", "transact"}


def check_rows(root: str, found: Iterable[Step]) -> Iterator[Finding]:
    """Yield findings of single messages: each commit that wrote messages anew is compared with what it read."""
    for step in found:
        if not (step.entry.ours and step.entry.operation in _WRITING and step.removed):
            continue
        before, after = _table(root, step.removed), _table(root, step.added)
        if before is not None and after is not None:
            yield from _compared(step, before, after)


class CountedRows:
    """The numbers of messages, row by row, in the order of lookup ids."""

    def __init__(self, columns: Sequence[Numbers]) -> None:
        order = np.argsort(columns[0], kind="stable") if len(columns[0]) else np.empty(0, np.int64)
        self.ids, self.aborts, self.crashes, self.moves, self.inside = (column[order] for column in columns)

    def waiting(self) -> CountedRows:
        """Return those that are in the queue, not on their way to another."""
        kept = self.inside == 1
        return CountedRows([column[kept] for column in (self.ids, self.aborts, self.crashes, self.moves, self.inside)])


def _table(root: str, files: Sequence[DataFile]) -> CountedRows | None:
    """Return the rows of files; None when one of them is gone or cannot be read: another finding says so, or a vacuum was right."""
    parts: list[list[Numbers]] = [[np.empty(0, np.int64)] * 5]
    for file in files:
        try:
            with pq.ParquetFile(Path(root, file.path)) as parquet:
                cells = parquet.read(["lookup_id", "abort_count", "crash_count"])
        except (OSError, pa.ArrowException):
            return None
        size = cells.num_rows
        place = (np.full(size, file.move_count, np.int64), np.full(size, int(file.sub_queue in MESSAGES), np.int64))
        parts.append([*(_numbers(cells.column(name)) for name in ("lookup_id", "abort_count", "crash_count")), *place])
    return CountedRows([np.concatenate(column) for column in zip(*parts, strict=True)])


def _numbers(column: Any) -> Numbers:
    return np.asarray(column.fill_null(0).to_numpy(), dtype=np.int64)


def _compared(step: Step, before: CountedRows, after: CountedRows) -> Iterator[Finding]:
    stays = after.waiting()
    unknown = np.setdiff1d(after.ids, before.ids)
    if len(unknown):
        yield finding_of(step, Kind.MESSAGE_UNKNOWN, f"put {len(unknown)} message(s) in that it had not taken, such as {_some(unknown)}")
    twice = _twice(stays.ids)
    if len(twice):
        yield finding_of(step, Kind.MESSAGE_TWICE, f"put {len(twice)} message(s) in twice, such as {_some(twice)}")
    gone, counts = len(np.setdiff1d(before.ids, after.ids)), counts_of(step)
    if counts is not None and gone != counts["committed"] + counts["dropped"]:
        yield finding_of(
            step,
            Kind.NOT_CONSERVED,
            f"leaves {gone} messages out, and says settled {counts['committed']} and dropped {counts['dropped']}",
        )
    if step.entry.operation in _COUNTED and not len(unknown) and not len(twice):
        yield from _fallen(step, before, stays)


def _fallen(step: Step, before: CountedRows, after: CountedRows) -> Iterator[Finding]:
    common, old, new = np.intersect1d(before.ids, after.ids, return_indices=True)
    moved = after.moves[new] > before.moves[old]
    falls = {
        "move count": after.moves[new] < before.moves[old],
        "crash count": after.crashes[new] < before.crashes[old],
        "abort count": (after.aborts[new] < before.aborts[old]) & ~moved,
    }
    for name, fell in falls.items():
        if fell.any():
            yield finding_of(step, Kind.COUNT_FELL, f"lowered the {name} of {int(fell.sum())} message(s), such as {_some(common[fell])}")


# The messages of now --------------------------------------------------------------------------------------------------


def check_ids(root: str, live: Iterable[DataFile], last_id: int) -> Iterator[Finding]:
    """Yield messages that are in the queue twice, or that were never sent. Files whose statistics leave no doubt are not opened."""
    files = sorted((file for file in live if file.sub_queue in MESSAGES), key=lambda file: file.min_lookup_id)
    for file in files:
        if file.min_lookup_id < 1 or file.max_lookup_id > last_id:
            what = f"a file has lookup ids {file.min_lookup_id} to {file.max_lookup_id}; expected 1 to {last_id}, the last that was given"
            yield Finding(Kind.MESSAGE_UNKNOWN, Severity.ERROR, what, file.path, REPORT)
    for group in _overlapping(files):
        rows = _table(root, group)
        twice = np.empty(0, np.int64) if rows is None else _twice(rows.ids)
        if len(twice):
            what = f"{len(twice)} message(s) are in the queue twice, such as {_some(twice)}"
            yield Finding(Kind.MESSAGE_TWICE, Severity.ERROR, what, ", ".join(file.path for file in group[:3]), REPORT)


def _overlapping(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Yield files, in groups, that may share messages with each other, or hold one twice."""
    group: list[DataFile] = []
    reach = 0
    for file in files:
        if group and file.min_lookup_id > reach:
            yield from _doubtful(group)
            group = []
        group.append(file)
        reach = max(reach, file.max_lookup_id)
    yield from _doubtful(group)


def _doubtful(group: list[DataFile]) -> Iterator[list[DataFile]]:
    """Leave out what holds every id of its range, one file alone."""
    if len(group) > 1 or any(file.rows != file.max_lookup_id - file.min_lookup_id + 1 for file in group):
        yield group


def _twice(ids: Numbers) -> Numbers:
    found, times = np.unique(ids, return_counts=True)
    return found[times > 1]


def _some(ids: Numbers) -> str:
    return ", ".join(str(number) for number in ids[:5])


# Dialogs: endpoints and messages that wait for their target queues change only by the verbs that are for it -----------


_BRING = {
    CONVERSATION: frozenset({"finish", "transact", "merge"}),
    LANDING: frozenset({"append", "finish"}),
    PLAN: frozenset({"plan"}),
    SOURCE: frozenset({"append"}),
    TRANSMISSION_QUEUE: frozenset({"finish", "transact"}),
}
_TAKE = {
    CONVERSATION: frozenset({"transact", "merge"}),
    LANDING: frozenset({"remove_landings"}),
    PLAN: frozenset({"remove_plans"}),
    SOURCE: frozenset({"append", "forget_source"}),
    TRANSMISSION_QUEUE: frozenset({"transact", "remove_transmissions"}),
}
_ANYTHING = frozenset({"restore", "accept"})


def check_dialogs(root: str, past: Past, live: Iterable[DataFile]) -> Iterator[Finding]:
    """Yield what our commits cannot have done to dialogs, and versions of an endpoint of which it is not known which one counts."""
    for entry in past.entries:
        if entry.ours and entry.operation not in _ANYTHING:
            yield from _impossible_for_dialogs(entry)
            yield from _misplaced(entry)
    yield from _endpoints_twice(root, [file for file in live if file.sub_queue == CONVERSATION])


def _impossible_for_dialogs(entry: Version) -> Iterator[Finding]:
    for verb, paths, allowed in (("adds", [file.path for file in entry.adds], _BRING), ("removes", entry.removes, _TAKE)):
        for path in paths:
            place = partition_of(path)
            if place is not None and entry.operation not in allowed.get(place[0], {entry.operation}):
                what = f"the commit '{entry.operation}' {verb} {path}, which is not for it"
                yield Finding(Kind.HISTORY_IMPOSSIBLE, Severity.ERROR, what, f"version {entry.version}", REPORT)


def _misplaced(entry: Version) -> Iterator[Finding]:
    for file in entry.adds:
        if file.sub_queue == TRANSMISSION_QUEUE and commit_version(file.path) != entry.version:
            what = f"dialog messages that were committed with version {entry.version} say another in their name: they are sent out of order"
            yield Finding(Kind.TRANSMISSION_ORDER, Severity.ERROR, what, file.path, REPORT)


def _endpoints_twice(root: str, live: Iterable[DataFile]) -> Iterator[Finding]:
    known: dict[tuple[str, int], str] = {}
    for file in live:
        try:
            rows = read_columns(LocalFolder(root), file.path, ["conversation_id", "lookup_id"])
        except TableChangedError:  # another finding says so
            continue
        for row in rows.to_pylist():
            key = (row["conversation_id"], row["lookup_id"])
            if key in known:
                what = f"version {key[1]} of the conversation endpoint {key[0]} is there twice, in {known[key]}, too: which one counts is not known"
                yield Finding(Kind.ENDPOINT_TWICE, Severity.ERROR, what, file.path, REPORT)
            known[key] = file.path
