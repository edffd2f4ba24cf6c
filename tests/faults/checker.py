"""The checker: reads the whole history of an episode's tables, what handlers wrote and what people were told, and decides.

It shares no code with the product: the log is read as JSON and compared with what delta-rs makes of it, data files with pyarrow.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.history import OUTBOX, History, read_histories
from tests.faults.ledger import Reader
from tests.faults.rules_of_commits import check_commits
from tests.faults.verdict import Verdict
from tests.faults.world import queues

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.faults.ledger import Line

_TOLD_OF = frozenset({"MOVED_POISON", "DROPPED", "REJECTED", "DEAD_LETTERED", "REQUEUED", "EXCEPTIONED", "BLOCKED"})
_TOLD_OF_HALTS = frozenset({"QUEUE_DISABLED", "STOPPED", "FAULTED"})
_UNCOUNTED = frozenset({"postpone", "unprocessable"})
Key = tuple[str, int]


def check(folder: str, killed: Mapping[int, bool]) -> Verdict:
    """Return what is wrong with an episode.

    :param killed: the runs that were killed; True: from outside, at any instant.
    """
    verdict = Verdict()
    histories = read_histories(Path(folder, "store"), verdict)
    for history in histories.values():
        check_commits(history, verdict)
    lines = [*Reader(folder).news()]
    calls = _calls(lines)
    _check_places(histories, lines, verdict)
    _check_calls(histories, calls, killed, verdict)
    _check_order(lines, verdict)
    _check_alerts(histories, lines, verdict)
    return verdict


class Calls:
    """The calls of one message: counts that the handler saw, the run, and how each ended (empty: it did not)."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []
        self.runs: list[int] = []
        self.how: list[str] = []
        self.last_of_run: list[bool] = []


def _calls(lines: Iterable[Line]) -> dict[Key, Calls]:
    found: dict[Key, Calls] = defaultdict(Calls)
    last: dict[int, tuple[Calls, int]] = {}
    for line in lines:
        if line["kind"] == "call":
            calls = found[line["queue"], line["id"]]
            if line["run"] in last:
                before, place = last[line["run"]]
                before.last_of_run[place] = False
            calls.seen.append((line["m"], line["a"]))
            calls.runs.append(line["run"])
            calls.how.append("")
            calls.last_of_run.append(True)
            last[line["run"]] = calls, len(calls.how) - 1
        elif line["kind"] == "end":
            calls, place = last[line["run"]]
            calls.how[place] = line["how"]
    return found


# Where messages are ---------------------------------------------------------------------------------------------------


def _check_places(histories: Mapping[str, History], lines: Iterable[Line], verdict: Verdict) -> None:  # noqa: C901  (four short rules)
    """Every message that was sent is in exactly one place, or has left for a reason that is written down."""
    places = Counter(row.message_id for history in histories.values() for row in history.present())
    left = {(row.message_id) for history in histories.values() for row in history.left}
    for message_id, number in places.items():
        if number > 1:
            verdict.doubled.append(f"{message_id} is in {number} places")
        if message_id in left:
            verdict.doubled.append(f"{message_id} has left and is there")
    for line in lines:
        if line["kind"] == "sent":
            history = histories[line["queue"]]
            ids = set(range(line["first"], line["first"] + line["count"]))
            if not ids <= history.came.keys():
                verdict.lost.append(f"{line['key']} of {line['queue']} was acknowledged as {line['first']}..., and is not in the log")
    sent = {row.message_id for history in histories.values() for row in history.came.values()}
    for message_id in sent - places.keys() - left:
        verdict.lost.append(f"{message_id} is nowhere")
    for history in histories.values():
        for row in history.present():
            if row.place in {OUTBOX, "_none"}:
                verdict.stuck.append(f"{row.message_id} is still in the outbox of {history.name}")


# What handlers saw ----------------------------------------------------------------------------------------------------


def _check_calls(histories: Mapping[str, History], calls: Mapping[Key, Calls], killed: Mapping[int, bool], verdict: Verdict) -> None:
    rules = queues()
    extras: list[str] = []
    for (queue, number), made in calls.items():
        name = f"{queue} {number}"
        _check_returned(name, made, histories[queue].committed(number), killed, verdict)
        _check_counted(name, made, verdict)
        if rules[queue].tells:
            told = histories[queue].delivered[number]
            seen = Counter(made.seen)
            for counts in (seen - told).elements():
                verdict.uncounted.append(f"{name} was called at {counts}, which no event tells")
            extras += [f"{name} at {counts}" for counts in (told - seen).elements()]
        else:
            extras += [name for _ in range(_skipped(made))]
    for queue, history in histories.items():
        if queue in rules and rules[queue].tells:
            for number, told in history.delivered.items():
                if (queue, number) not in calls:
                    extras += [f"{queue} {number} at {counts}" for counts in told.elements()]
        _check_settled(queue, history, calls, verdict)
    busy = {made.runs[place] for made in calls.values() for place, how in enumerate(made.how) if not how and made.last_of_run[place]}
    allowed = sum(late for run, late in killed.items() if run not in busy)
    verdict.innocents_charged += extras[allowed:] if len(extras) > allowed else []


def _check_returned(name: str, made: Calls, committed: bool, killed: Mapping[int, bool], verdict: Verdict) -> None:  # noqa: FBT001
    """Once a handler has returned, its message is committed; but for the last call of a run that was killed, whose return nobody noted."""
    returned = [place for place, how in enumerate(made.how) if how == "ok"]
    for place in returned:
        final = place == len(made.how) - 1 and committed
        if not final and not (made.runs[place] in killed and made.last_of_run[place]):
            verdict.doubled.append(f"{name} was called {len(made.how)} times, and had succeeded in run {made.runs[place]} (call {place + 1})")


def _check_counted(name: str, made: Calls, verdict: Verdict) -> None:
    """Every call that did not end well is counted before the next one: later calls see higher counts."""
    for place in range(1, len(made.seen)):
        free = made.how[place - 1] in _UNCOUNTED
        before, now = made.seen[place - 1], made.seen[place]
        if now < before or (now == before and not free):
            verdict.uncounted.append(f"{name} saw {before} in run {made.runs[place - 1]} and then {now} in run {made.runs[place]}")


def _skipped(made: Calls) -> int:
    """Return how many counts no call has seen."""
    missed = made.seen[0][1] if made.seen[0][0] == 0 else 0
    for (m, a), (now_m, now_a) in zip(made.seen, made.seen[1:], strict=False):
        if m == now_m:
            missed += max(0, now_a - a - 1)
    return missed


def _check_settled(queue: str, history: History, calls: Mapping[Key, Calls], verdict: Verdict) -> None:
    """A message that a pass has settled had a handler that returned."""
    for row in history.settled:
        made = calls.get((queue, row.number))
        if made is None or "ok" not in made.how:
            verdict.lost.append(f"{queue} {row.number} ({row.message_id}) was settled, and no handler had returned")


def _check_order(lines: Iterable[Line], verdict: Verdict) -> None:
    newest: dict[str, int] = {}
    ordered = {name for name, rules in queues().items() if rules.ordered}
    for line in lines:
        if line["kind"] == "call" and line["queue"] in ordered:
            if line["id"] < newest.get(line["queue"], 0):
                verdict.order.append(f"{line['queue']} {line['id']} was received after {newest[line['queue']]}")
            newest[line["queue"]] = max(line["id"], newest.get(line["queue"], 0))


# What people were told ------------------------------------------------------------------------------------------------


def _check_alerts(histories: Mapping[str, History], lines: Iterable[Line], verdict: Verdict) -> None:
    alerts: dict[str, Line] = {}
    for line in lines:
        if line["kind"] == "told":
            facts = {name: line[name] for name in ("queue", "event", "count", "ids")}
            if alerts.setdefault(line["key"], facts) != facts:
                verdict.events.append(f"the alert {line['key']} was told with {facts} and with {alerts[line['key']]}")
    told = Counter[tuple[str, str]]()
    for facts in alerts.values():
        told[facts["queue"], facts["event"]] += facts["count"]
    for queue in queues():
        wanted = Counter(event.type for event in histories[queue].events if _is_told_of(event.type) and not event.by_hand)
        for kind, number in wanted.items():
            if told[queue, kind] < number:
                verdict.alerts_missing += [f"{queue} {kind}"] * (number - told[queue, kind])
            elif told[queue, kind] > number:
                verdict.events.append(f"{queue}: {number} events {kind}, and alerts with different keys tell of {told[queue, kind]}")


def _is_told_of(event: str) -> bool:
    return event in _TOLD_OF | _TOLD_OF_HALTS
