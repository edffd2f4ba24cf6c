"""The checker: reads the whole history of an episode's tables, what handlers wrote and what people were told, and decides.

It shares no code with the product: the log is read as JSON and compared with what delta-rs makes of it, data files with pyarrow. What verbs have
removed is read where it was put aside.

A loss of power takes back what no commit has acknowledged: calls of a run that had not told its end before may be made again, and uncounted. In a
bucket the same holds where a node is lost, or a pass on another node goes on: unless the run had sealed its outcome before, or left it to all others.
A run that does not know of that yet may go on for a while; nothing is expected of what it calls then.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from tests.faults.contents import check_contents
from tests.faults.dialogs import check_dialogs
from tests.faults.exact import digest_of_given
from tests.faults.handler import LANDED
from tests.faults.history import OUTBOX, History, read_histories
from tests.faults.ledger import Reader
from tests.faults.rules_of_commits import check_commits
from tests.faults.transforming import charged, fails
from tests.faults.verdict import Verdict
from tests.faults.world import RETENTION, TRANSFORMED, WITH_OUTAGES, output_of, queues

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.faults.ledger import Line

_TOLD_OF = frozenset({"MOVED_POISON", "DROPPED", "REJECTED", "DEAD_LETTERED", "REQUEUED", "EXCEPTIONED", "BLOCKED", "OUTAGE_BEGAN", "OUTAGE_OVER"})
_TOLD_OF_HALTS = frozenset({"QUEUE_DISABLED", "STOPPED", "FAULTED"})
_AWAY = "away"
_UNCOUNTED = frozenset({"postpone", "unprocessable"})
Key = tuple[str, int]
"""Of a message: its queue and its lookup id."""
Process = tuple[int, int]
"""A run, and the id of one of its processes."""


def check(folder: str, killed: Mapping[int, bool], *, quiet: bool = True) -> Verdict:
    """Return what is wrong with an episode.

    :param killed: the runs that were killed; True: from outside, at any instant.
    :param quiet: whether all passes were finished; if not, what was received last may wait for its commit.
    """
    verdict = Verdict()
    histories = read_histories(Path(folder), verdict)
    lines = [*Reader(folder).news()]
    actions = {line["plan"]: line["action"] for line in lines if line["kind"] == "will_plan"}
    for history in histories.values():
        check_commits(history, verdict, actions)
    sight = Sight.of(lines)
    calls = _calls(lines, sight)
    heard = sight.heard(lines)
    _check_committed(histories, lines, verdict)
    _check_removed(histories, lines, verdict)
    _check_places(histories, lines, verdict)
    check_contents(folder, histories, lines, verdict, quiet=quiet)
    _check_calls(histories, calls, Deaths.of(lines, calls, killed, quiet=quiet, lost=bool(sight.lost)), verdict)
    _check_order(histories, heard, verdict)
    check_dialogs(histories, heard, verdict, quiet=quiet)
    _check_landed(folder, histories, calls, lines, verdict, quiet=quiet)
    _check_alerts(histories, lines, verdict)
    if not quiet:
        verdict.alerts_missing.clear()
    verdict.log += [f"check finds in {line['queue']}: {line['what']}" for line in lines if line["kind"] == "finding"]
    return verdict


@dataclass(slots=True)
class Call:
    """What a handler noted.

    :param seen: the counts that it saw.
    :param process: the process that it was called in, a run's own or a child's.
    :param how: how it ended; empty: it did not.
    :param last: nothing was called after it in its process.
    :param at: the number of its line.
    :param lost_at: that of the line from which on nobody may know of it; infinite: there is none.
    :param late: its run had been overtaken by one on another node.
    :param told: its run has said that it received, before the power failed.
    :param in_dialog: its message belongs to a dialog.
    :param content: what it was given: the digests of body and properties.
    """

    seen: tuple[int, int]
    run: int
    process: Process
    at: int
    lost_at: float
    late: bool
    how: str = ""
    last: bool = True
    told: bool = False
    in_dialog: bool = False
    content: tuple[str, str] = "", ""

    def forgotten(self, by: float = math.inf) -> bool:
        """Whether it may be that nobody knew any more what became of it, at a line or ever."""
        return not self.told and self.lost_at < by


@dataclass(slots=True)
class Sight:
    """What of a run nobody knew any more, and when.

    :ivar power: each line at which the power failed.
    :ivar lost: by run, each line at which its node was lost, or a pass on another node went on.
    :ivar overtaken: by run, the first line at which a pass on another node went on.
    :ivar kept: by run, each line at which all that it had done was there for every later holder, on whichever node.
    """

    power: list[int] = field(default_factory=list)
    lost: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    overtaken: dict[int, int] = field(default_factory=dict)
    kept: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    _nodes: dict[int, str] = field(default_factory=dict)
    _holders: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Sight:
        found = cls()
        for at, line in enumerate(lines):
            match line["kind"]:
                case "power":
                    found.power.append(at)
                case "entered":
                    found._nodes[line["run"]] = line["node"]
                case "made":
                    found._holders[line["attempt"]] = line["run"]
                case "held":
                    found._overtake(line["run"], line["earlier"], at)
                case "node_lost":
                    found._lose(line["node"], at)
                case "kept":
                    found.kept[line["run"]].append(at)
        return found

    def _overtake(self, run: int, earlier: Iterable[str], at: int) -> None:
        for holder in (self._holders[attempt] for attempt in earlier if attempt in self._holders):
            if self._nodes.get(holder) != self._nodes.get(run):
                self.lost[holder].append(at)
                self.overtaken.setdefault(holder, at)

    def _lose(self, node: str, at: int) -> None:
        for run, where in self._nodes.items():
            if where == node:
                self.lost[run].append(at)

    def lost_at(self, run: int, at: int) -> float:
        """Return the line from which on nobody may know what a run did at a line. What it did late may be found out by those who go on, or never."""
        if self.is_late(run, at):
            return at
        lost = next((each for each in self.lost.get(run, ()) if each > at), math.inf)
        kept = any(at < each < lost for each in self.kept.get(run, ()))
        return min(next((each for each in self.power if each > at), math.inf), math.inf if kept else lost)

    def is_late(self, run: int, at: int) -> bool:
        """Whether a pass on another node had gone on by then."""
        return at > self.overtaken.get(run, math.inf)

    def heard(self, lines: Sequence[Line]) -> list[Line]:
        """Return the lines; where deliveries begin again there is an ``again``, and those that came late are a ``late call`` and a ``late end``."""
        again = {*self.power, *(at for lost in self.lost.values() for at in lost)}
        found: list[Line] = []
        for at, line in enumerate(lines):
            late = line["kind"] in {"call", "end"} and self.is_late(line["run"], at)
            found.append(line | {"kind": f"late {line['kind']}"} if late else line)
            if at in again:
                found.append({"kind": "again", "run": 0})
        return found


def _calls(lines: Iterable[Line], sight: Sight) -> dict[Key, list[Call]]:
    found: dict[Key, list[Call]] = defaultdict(list)
    last: dict[Process, Call] = {}
    of_run: dict[int, list[Call]] = defaultdict(list)
    for at, line in enumerate(lines):
        match line["kind"]:
            case "call":
                process = line["run"], line["pid"]
                if process in last:
                    last[process].last = False
                run = line["run"]
                lost, late = sight.lost_at(run, at), sight.is_late(run, at)
                made = last[process] = Call((line["m"], line["a"]), run, process, at, lost, late, in_dialog="dialog" in line)
                made.content = line.get("body", ""), line.get("given", "")
                found[line["queue"], line["id"]].append(made)
                of_run[run].append(made)
            case "end":
                last[line["run"], line["pid"]].how = line["how"]
            case "received":
                for made in of_run[line["run"]]:
                    made.told = True
    return found


@dataclass(frozen=True, slots=True)
class Deaths:
    """What was killed.

    :param processes: children of server sessions, each with its run.
    :param innocents: how many messages may have been charged that no handler was called with: a kill from outside met them between their mark
        and their call.
    :param quiet: whether all passes were finished.
    :param unwritten: runs in which it could not be written down what a delivery had done in its conversation: it has not committed.
    :param lost: whether there were passes that nodes were lost of, or that went on on other nodes.
    :param transforming: those of the runs that transformed messages.
    """

    processes: frozenset[Process]
    runs: frozenset[int]
    innocents: int
    quiet: bool = True
    unwritten: frozenset[int] = frozenset()
    lost: bool = False
    transforming: frozenset[int] = frozenset()

    @classmethod
    def of(cls, lines: Sequence[Line], calls: Mapping[Key, list[Call]], killed: Mapping[int, bool], *, quiet: bool, lost: bool) -> Deaths:
        children = {(line["run"], line["pid"]) for line in lines if line["kind"] == "child_killed"}
        with_children = {line["run"] for line in lines if line["kind"] == "call" and line["child"]}
        busy = {call.process for made in calls.values() for call in made if not call.how and call.last}
        busy_runs = {run for run, _ in busy} - with_children
        late = sum(late and run not in busy_runs for run, late in killed.items())
        unwritten = {line["run"] for line in lines if line["kind"] == "fault" and _prevents_effects(line)}
        transforming = {line["run"] for line in lines if line["kind"] == "transforms"} & killed.keys()
        return cls(frozenset(children), frozenset(killed), late + len(children - busy), quiet, frozenset(unwritten), lost, frozenset(transforming))

    def of_sections(self, made: Iterable[Call]) -> bool:
        """Whether a message that was called like this may have been charged with losses of whole sections of the journal."""
        return self.lost and any(not call.how and call.last for call in made)

    def hit(self, call: Call) -> bool:
        """Whether a process was killed when nothing had been called after this call, or could not write down what it had done."""
        unwritten = call.in_dialog and call.run in self.unwritten
        return call.last and (call.run in self.runs or call.process in self.processes or unwritten)


def _prevents_effects(fault: Line) -> bool:
    return fault["what"] == "full" or (
        fault["what"] == "error" and fault["point"] in {f"delivery.dialogs.{side}_effect" for side in ("before", "after")}
    )


# What was acknowledged, and what was removed --------------------------------------------------------------------------


def _check_committed(histories: Mapping[str, History], lines: Iterable[Line], verdict: Verdict) -> None:
    """Every commit that was acknowledged to the process that made it is in the log."""
    for line in lines:
        if line["kind"] != "committed" or line["queue"].startswith("."):  # a queue that is being made
            continue
        commits = histories[line["queue"]].commits if line["queue"] in histories else []
        if line["version"] >= len(commits) or commits[line["version"]].details.get("mark") != line["mark"]:
            verdict.lost.append(f"version {line['version']} of {line['queue']} was acknowledged in run {line['run']}, and is not in the log")


def _check_removed(histories: Mapping[str, History], lines: Iterable[Line], verdict: Verdict) -> None:
    """Nothing was removed that a version within the retention needs, and nothing came into the table that had been removed before."""
    removed: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    retention = RETENTION.total_seconds()
    for line in lines:
        if line["kind"] == "removed":
            removed[line["queue"]][line["path"]].append(line["at"])
            retention = line.get("kept", retention)
    for queue, times in removed.items():
        left: dict[str, float] = {}
        came: dict[str, float] = {}
        for made in histories[queue].commits if queue in histories else ():
            came |= {file.path: made.at for file in made.added}
            left |= {file.path: made.at for file in made.removed}
        for path, at in times.items():
            if path.startswith("_delta_log/"):
                _check_removed_entry(histories[queue], int(Path(path).stem), max(at), retention, verdict)
            elif path in came and min(at) < came[path]:
                verdict.lost.append(f"{queue}: {path} was removed from the folder before a commit added it")
            elif path in came and min(at) - left.get(path, min(at)) < retention:
                verdict.lost.append(f"{queue}: {path} was removed from the folder within the retention")


def _check_removed_entry(history: History, version: int, at: float, retention: float, verdict: Verdict) -> None:
    """An entry goes when its version was not the newest for as long as the retention. One that a loss of power had cut was no version."""
    if version < len(history.commits) and at > history.commits[version].at:
        overtaken = history.commits[version + 1].at if version + 1 < len(history.commits) else at
        if at - overtaken < retention:
            verdict.lost.append(f"{history.name}: the entry of version {version} was removed within the retention")


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
            history = histories.get(line["queue"])
            sent = dict(enumerate(line["ids"], line["first"]))
            if history is None or not sent.items() <= {number: row.message_id for number, row in history.came.items()}.items():
                verdict.lost.append(f"{line['key']} of {line['queue']} was acknowledged as {line['first']}..., and is not in the log")
    came = {row.message_id for history in histories.values() for row in history.came.values()}
    for message_id in came - places.keys() - left:
        verdict.lost.append(f"{message_id} is nowhere")
    for history in histories.values():
        for row in history.present():
            if row.place in {OUTBOX, "_none"}:
                verdict.stuck.append(f"{row.message_id} is still in the outbox of {history.name}")


# What handlers saw ----------------------------------------------------------------------------------------------------


def _check_calls(histories: Mapping[str, History], calls: Mapping[Key, list[Call]], deaths: Deaths, verdict: Verdict) -> None:
    rules = queues()
    extras: list[str] = []
    succeeded = _successes(calls)
    for (queue, number), made in calls.items():
        name, heard = f"{queue} {number}", [call for call in made if not call.late]
        if queue not in histories:
            verdict.lost.append(f"{name} was called, and its queue is gone")
            continue
        _check_returned(name, heard, histories[queue].committed(number), deaths, verdict)
        if queue == WITH_OUTAGES:
            _check_counted_with_outages(name, heard, succeeded, verdict)
        else:
            _check_counted(name, heard, verdict)
        if rules[queue].tells:
            extras += _check_told(name, made, histories[queue].delivered[number], deaths, verdict)
        else:
            extras += [name for _ in range(_skipped(heard)) if not deaths.of_sections(made)]
    for queue, history in histories.items():
        if queue in rules and rules[queue].tells and queue != TRANSFORMED:
            for number, told in history.delivered.items():
                if (queue, number) not in calls:
                    extras += [f"{queue} {number} at {counts}" for counts in told.elements()]
        if queue == TRANSFORMED:
            _check_transformed(history, deaths, verdict)
        else:
            _check_settled(queue, history, calls, verdict)
    verdict.innocents_charged += extras[deaths.innocents :]


def _check_returned(name: str, made: Sequence[Call], committed: bool, deaths: Deaths, verdict: Verdict) -> None:  # noqa: FBT001
    """Once a handler has returned, its message is committed; but for the last call of a process that was killed, whose return nobody noted."""
    for place, call in enumerate(made):
        final = call is made[-1] and (committed or not deaths.quiet)
        if call.how == "ok" and not final and not deaths.hit(call) and not call.forgotten():
            verdict.doubled.append(f"{name} was called {len(made)} times, and had succeeded in run {call.run} (call {place + 1})")


def _check_counted(name: str, made: Sequence[Call], verdict: Verdict) -> None:
    """Every call that did not end well is counted before the next one: later calls see higher counts."""
    for before, now in pairwise(made):
        free = before.how in _UNCOUNTED
        if (now.seen < before.seen or (now.seen == before.seen and not free)) and not before.forgotten(now.at):
            verdict.uncounted.append(f"{name} saw {before.seen} in run {before.run} and then {now.seen} in run {now.run}")


def _successes(calls: Mapping[Key, list[Call]]) -> Mapping[int, Sequence[int]]:
    """Return the lines of the calls that succeeded in the queue with outages, by their run."""
    found = defaultdict[int, list[int]](list)
    for (queue, _), made in calls.items():
        for call in made if queue == WITH_OUTAGES else ():
            found[call.run] += [call.at] * (call.how == "ok")
    return found


def _check_counted_with_outages(name: str, made: Sequence[Call], succeeded: Mapping[int, Sequence[int]], verdict: Verdict) -> None:
    """The same where a probe calls a handler once, uncounted, and an outage gives what failed in it last back with the counts that it came with.

    A run probes a message once more only when another has succeeded since: the outage that it suspected before was none.

    :param succeeded: by run, the lines of the calls that did, of all messages.
    """
    came, was_away, probed = None, False, dict[int, int]()
    for before, now in pairwise(made):
        came = came or before.seen
        was_away |= before.how == _AWAY
        free = was_away or before.how in _UNCOUNTED or any(probed.get(before.run, -1) < at < before.at for at in succeeded.get(before.run, ()))
        free |= before.run not in probed
        if now.seen == before.seen:
            probed[before.run] = before.at
        least = came if was_away else before.seen
        if (now.seen < least or (now.seen == before.seen and not free)) and not before.forgotten(now.at):
            verdict.uncounted.append(f"{name} saw {before.seen} in run {before.run} and then {now.seen} in run {now.run}")
        if before.told and now.run != before.run:
            came, was_away = None, False


def _check_transformed(history: History, deaths: Deaths, verdict: Verdict) -> None:
    """A message that always fails is never settled, one that never fails is never charged; a driver that is killed may charge one that was alone."""
    for row in history.settled:
        if fails(history.bodies[row.body]):
            verdict.lost.append(f"{history.name} {row.number} ({row.message_id}) was settled, and always fails")
    rows = charged(history)
    verdict.innocents_charged += [f"{history.name} {row.number} at {row.m, row.a, row.crashes}" for row in rows[len(deaths.transforming) :]]


def _check_told(name: str, made: Sequence[Call], told: Counter[tuple[int, int]], deaths: Deaths, verdict: Verdict) -> list[str]:
    """Every call has its event; return the events that have no call.

    Of calls that are forgotten none is wanted. If such a call is found out later, its message is charged for it then: its event has other counts.
    And a message that ends its process alone is charged with each loss of a section in which it was, though another one did that.
    """
    seen = Counter(call.seen for call in made)
    wanted = Counter(call.seen for call in made if not call.forgotten() and (call.told or deaths.quiet))
    if _AWAY in {call.how for call in made}:
        wanted.clear()
    for _ in {call.run for call in made if name.startswith(f"{WITH_OUTAGES} ")}:  # each may have been a probe, which calls a handler uncounted
        wanted -= Counter([*(wanted - told).elements()][:1])
    found_out = (Counter(call.seen for call in made if call.forgotten()) & (seen - told)).total()
    for counts in (wanted - told).elements():
        verdict.uncounted.append(f"{name} was called at {counts}, which no event tells")
    return [] if deaths.of_sections(made) else [f"{name} at {counts}" for counts in (told - seen).elements()][found_out:]


def _skipped(made: Sequence[Call]) -> int:
    """Return how many counts no call has seen, but for those of forgotten calls, for which a message is charged when they are found out."""
    missed = made[0].seen[1] if made and made[0].seen[0] == 0 else 0
    for before, now in pairwise(made):
        if before.seen == now.seen:
            missed -= before.forgotten(now.at)
        elif before.seen[0] == now.seen[0]:
            missed += max(0, now.seen[1] - before.seen[1] - 1)
    return max(0, missed)


def _check_settled(queue: str, history: History, calls: Mapping[Key, list[Call]], verdict: Verdict) -> None:
    """A message that a pass has settled had a handler that returned."""
    for row in history.settled:
        if not any(call.how == "ok" for call in calls.get((queue, row.number), ())):
            verdict.lost.append(f"{queue} {row.number} ({row.message_id}) was settled, and no handler had returned")
        elif not any(call.how == "ok" and call.content == (row.body, digest_of_given(row.given)) for call in calls[queue, row.number]):
            verdict.changed.append(f"{queue} {row.number} ({row.message_id}) was settled, and no handler had returned that was given its bytes")


def _check_landed(
    folder: str, histories: Mapping[str, History], calls: Mapping[Key, list[Call]], lines: Sequence[Line], verdict: Verdict, *, quiet: bool
) -> None:
    """What each settled message returned is in the queue's output once, and nothing else is."""
    damaged = {line["queue"] for line in lines if line["kind"] == "damage"}  # people may have gone on without a commit
    for queue, history in histories.items():
        if queue in damaged:
            continue
        landed = _landed(output_of(folder, queue))
        returned = {number for (of, number), made in calls.items() if of == queue and any(call.how == "ok" and not call.in_dialog for call in made)}
        settled = {row.number for row in history.settled} & (returned if queue != TRANSFORMED else {row.number for row in history.settled})
        verdict.doubled += [f"{queue} {number} is {len(rows)} times in the output" for number, rows in landed.items() if len(rows) > 1]
        bodies = {row.number: history.bodies[row.body][:LANDED] for row in history.settled}
        verdict.changed += [
            f"{queue} {number} landed as {rows[0]!r:.200}" for number, rows in landed.items() if rows[0] != bodies.get(number, rows[0])
        ]
        verdict.doubled += [f"{queue} {number} is in the output, and is not settled" for number in landed.keys() - settled]
        if quiet:
            verdict.lost += [f"{queue} {number} was settled, and its row is not in the output" for number in settled - landed.keys()]


def _landed(output: str) -> Mapping[int, list[bytes]]:
    """Return the rows of an output: by message, what it returned of its body."""
    found: dict[int, list[bytes]] = defaultdict(list)
    if DeltaTable.is_deltatable(output):
        for row in DeltaTable(output).to_pyarrow_table().to_pylist():
            found[row["id"]].append(row["body"])
    return found


def _check_order(histories: Mapping[str, History], lines: Iterable[Line], verdict: Verdict) -> None:
    """What came malformed waits in ``poison`` for people, while those behind it are received."""
    newest: dict[str, int] = {}
    ordered = {name for name, rules in queues().items() if rules.ordered}
    for line in lines:
        if line["kind"] == "again":  # what had been received and not committed
            newest.clear()
        if line["kind"] == "call" and line["queue"] in ordered and line["id"] not in histories[line["queue"]].malformed:
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
    for queue in queues().keys() & histories.keys():
        wanted = Counter(event.type for event in histories[queue].events if _is_told_of(event.type) and event.is_news)
        kinds = wanted.keys() | {kind for about, kind in told if about == queue}
        for kind, number in ((kind, wanted[kind]) for kind in sorted(kinds)):
            if told[queue, kind] < number:
                verdict.alerts_missing += [f"{queue} {kind}"] * (number - told[queue, kind])
            elif told[queue, kind] > number:
                verdict.events.append(f"{queue}: {number} events {kind}, and alerts with different keys tell of {told[queue, kind]}")


def _is_told_of(event: str) -> bool:
    return event in _TOLD_OF | _TOLD_OF_HALTS
