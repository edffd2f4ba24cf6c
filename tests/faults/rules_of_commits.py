"""What each commit of a queue may do: which messages come, stay and go, with which counts, and which events it must tell, each once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tests.faults.exact import is_edited
from tests.faults.history import MESSAGES, OUTBOX
from tests.faults.world import queues

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.faults.history import File, Happened, History, Made, Row
    from tests.faults.verdict import Verdict

_COMES_TO = {"retry": {"MOVED_RETRY"}, "poison": {"MOVED_POISON"}, OUTBOX: {"REJECTED", "REQUEUED", "EXCEPTIONED", "DEAD_LETTERED"}}
_ONCE = frozenset({"DELIVERED", "COMMITTED"})
_UNTOLD = frozenset({"postponed", "transmission"})


def check_commits(history: History, verdict: Verdict, actions: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> None:
    """Replay the log, and hold each commit against the rules; fills what the history knows of messages and events.

    :param actions: what the plans of people do, by plan.
    """
    replay = _Replay(history, verdict, actions)
    for made in history.commits:
        replay.step(made)


class _Replay:
    def __init__(self, history: History, verdict: Verdict, actions: Mapping[str, Mapping[str, Any]]) -> None:
        self._history, self._verdict, self._actions = history, verdict, actions
        self._gone: set[str] = set()
        self._now: dict[int, Row] = {}
        self._claims: dict[str, tuple[str, int, frozenset[str]]] = {}
        self._once: Counter[tuple[str, int | None, int, int]] = Counter()
        self._versions: dict[int, dict[str, File]] = {}

    def step(self, made: Made) -> None:
        history = self._history
        claims = dict(self._claims)
        self._versions[made.version] = dict(history.live)
        if made.version > 1 and (made.foreign or made.operation == "restore"):
            self._somebody_elses(made)
            return
        if made.operation == "compact":
            self._same_events(made)
        self._replace_files(made)
        if made.operation == "compact":
            made = replace(made, added=tuple(file for file in made.added if file.place != "_event"))
        events = [event for file in made.added if file.place == "_event" for event in self._told(file, made)]
        before = {row.number: row for file in made.removed if file.place in MESSAGES for row in history.rows(file)}
        rows = [row for file in made.added if file.place in MESSAGES for row in history.rows(file)]
        after = {row.number: row for row in rows}
        if len(rows) != len(after):
            self._say("doubled", made, f"adds a message twice: {sorted(Counter(row.number for row in rows).most_common(3))}")
        self._came(made, before, after)
        self._left(made, before, after, events)
        self._counts(made, before, after)
        self._contents(made, before, after, events)
        self._moved(made, before, after, events)
        self._holds(made, claims)
        self._events(made, events)
        for number in before.keys() - after.keys():
            self._now.pop(number, None)
        self._now |= after

    def _say(self, kind: str, made: Made, text: str) -> None:
        getattr(self._verdict, kind).append(f"{self._history.name} version {made.version} ({made.operation}): {text}")

    def _somebody_elses(self, made: Made) -> None:
        """A stranger's commit changes what it likes; a restore leaves the files that there were in the version that it goes back to."""
        live = self._history.live
        for file in made.removed:
            live.pop(file.path, None)
        live |= {file.path: file for file in made.added}
        if made.operation == "restore" and live != self._versions[made.details["to"] + 1]:
            self._say("lost", made, f"does not lead back to version {made.details['to']}")

    def _same_events(self, made: Made) -> None:
        """Joined events are those that there were."""
        history = self._history
        before, after = (
            Counter(repr(event) for file in files if file.place == "_event" for event in history.told_in(file))
            for files in (made.removed, made.added)
        )
        if before != after:
            self._say("events", made, f"joins other events than there were: {sorted((before - after) + (after - before))[:2]}")

    def _replace_files(self, made: Made) -> None:
        live = self._history.live
        for file in made.removed:
            if live.pop(file.path, None) is None:
                self._say("doubled", made, f"removes {file.path}, which is not there")
            self._gone.add(file.path)
            self._claims.pop(file.path, None)
        for file in made.added:
            if file.path in live or file.path in self._gone:
                self._say("doubled", made, f"adds {file.path} again")
            live[file.path] = file
            if file.place == "_claim":
                key, _, body = self._history.body(file)
                self._claims[file.path] = key, len(body.get("earlier", ())), frozenset(each["path"] for each in body.get("files", ()))
        controls = sum(file.place == "_ctl" for file in live.values())
        if made.version > 1 and controls != 1:
            self._say("log", made, f"leaves {controls} control rows")

    def _told(self, file: File, made: Made) -> list[Happened]:
        if int(file.path.rpartition("/")[2].partition("-")[0]) != made.version:
            self._say("events", made, f"adds events of another version: {file.path}")
        return self._history.told_in(file)

    def _came(self, made: Made, before: dict[int, Row], after: dict[int, Row]) -> None:
        new = sorted(after.keys() - before.keys())
        if made.operation == "append":
            last = max(self._history.came, default=0)
            if new != list(range(last + 1, last + 1 + len(new))):
                self._say("doubled", made, f"adds the ids {new[:3]}... after {last}")
            known = {row.message_id for row in self._history.came.values()}
            again = [after[number].message_id for number in new if after[number].message_id in known]
            if made.details.get("key", "").startswith("relay:"):  # sent back to its queue by people
                self._history.relayed |= set(new)
            elif again and self._history.name in queues():
                self._say("doubled", made, f"adds {again[:3]}, which came before")
            self._history.malformed |= {number for number in new if after[number].place == "poison"}
            self._history.came |= {number: after[number] for number in new}
            return
        if made.operation == "bring_back":
            self._brought_back(made, [after[number] for number in new])
        elif new:
            self._say("doubled", made, f"brings back {new[:5]}")

    def _brought_back(self, made: Made, rows: list[Row]) -> None:
        """Only what people have removed comes back, each as it was when it left."""
        left = {row.number: row for row in self._history.left}
        settled = {row.number for row in self._history.settled}
        for row in rows:
            dropped = self._history.dropped.get(row.number)
            if left.get(row.number) != row or row.number in settled or dropped is None or dropped.details.get("plan") != made.details["plan"]:
                self._say("doubled", made, f"brings {row} back, which left as {left.get(row.number)}, dropped by {dropped}")
        back = {row.number for row in rows}
        self._history.left = [row for row in self._history.left if row.number not in back]
        for number in back:
            self._history.dropped.pop(number, None)

    def _left(self, made: Made, before: dict[int, Row], after: dict[int, Row], events: list[Happened]) -> None:
        gone = [before[number] for number in sorted(before.keys() - after.keys())]
        if not gone:
            return
        dropped = {number for event in events if event.type == "DROPPED" for number in event.numbers}
        if made.operation == "finish":
            self._history.settled += [row for row in gone if row.number not in dropped]
            self._history.left += gone
        elif made.operation in {"replace", "transact"}:
            self._history.left += gone
            unknown = [row.number for row in gone if row.number not in dropped]
            if unknown:
                self._say("lost", made, f"takes {unknown[:5]} out and tells nobody")
        elif made.operation == "remove_outbox":
            if any(row.place != OUTBOX for row in gone):
                self._say("lost", made, "takes messages out that are not in the outbox")
        else:
            self._say("lost", made, f"takes {[row.number for row in gone][:5]} out")

    def _counts(self, made: Made, before: dict[int, Row], after: dict[int, Row]) -> None:
        for number in before.keys() & after.keys():
            was, now = before[number], after[number]
            if now.m < was.m or (now.m == was.m and now.a < was.a and now.place != OUTBOX) or now.crashes < was.crashes:
                self._say("fell", made, f"{number} had {was} and has {now}")
            if made.operation in {"split", "alter"} and (was.m, was.a, was.crashes) != (now.m, now.a, now.crashes):
                self._say("fell", made, f"changes {was} to {now}")

    def _contents(self, made: Made, before: dict[int, Row], after: dict[int, Row], events: list[Happened]) -> None:
        """Every message keeps its bytes and its properties, but for those that an edit of people names, which become exactly what the plan says."""
        for event in events:
            if plan := event.details.get("plan"):
                for number in event.numbers:
                    self._history.planned[number].add(plan)
        edits = {number: event for event in events if event.type == "EDITED" for number in event.numbers}
        for number in before.keys() & after.keys():
            was, now, edit = before[number], after[number], edits.get(number)
            if edit is None:
                right = was.content == now.content
            elif edit.details.get("undone"):
                right = self._history.edited[number][-1:] == [(edit.details["plan"], now.content)]
                self._history.edited[number] = self._history.edited[number][:-1]
            else:
                right = self._is_edited(self._actions[edit.details["plan"]], was, now)
                self._history.edited[number].append((edit.details["plan"], was.content))
            if not right:
                bodies = self._history.bodies
                self._say(
                    "changed",
                    made,
                    f"{number} had {_shown(bodies[was.body])} with {was.given} and has {_shown(bodies[now.body])} with {now.given}"
                    + (f", edited by {edit.details['plan']}, {self._actions.get(edit.details['plan'])}" if edit is not None else ""),
                )

    def _is_edited(self, action: Mapping[str, Any], was: Row, now: Row) -> bool:
        bodies, properties = self._history.bodies, {**dict(was.given), **action.get("properties", {})}
        right = tuple(sorted((name, value) for name, value in properties.items() if value is not None))
        return is_edited(action, bodies[was.body], bodies[now.body]) and now.given == right

    def _moved(self, made: Made, before: dict[int, Row], after: dict[int, Row], events: list[Happened]) -> None:
        """Every message that comes to another place is told of once, and nothing is told that did not happen."""
        told = Counter((event.type, number) for event in events for number in self._told_of(event))
        for number, row in after.items():
            was = before.get(number)
            if was is None and made.operation == "append" and row.place == "poison":  # a record of a source that is malformed
                if told.pop(("MOVED_POISON", number), 0) != 1:
                    self._say("events", made, f"{number} came malformed, and not one event tells it")
                continue
            if was is None or was.place == row.place:
                continue
            returned = set() if was.place in _UNTOLD else {"RETURNED"}
            wanted = returned if row.place == "main" else _COMES_TO.get(row.place, set())
            if wanted and sum(told.pop((kind, number), 0) for kind in wanted) != 1:
                self._say("events", made, f"{number} came from {was.place} to {row.place}, and not one event of {wanted} tells it")
        if made.operation == "bring_back":
            if told.keys() - {(kind, number) for kind, number in told if number in after} or sorted(told.values()) != [1] * len(after):
                self._say("events", made, f"tells {told}, and brings {sorted(after)} back")
            return
        for (kind, number), times in told.items():
            if kind in {"MOVED_RETRY", "MOVED_POISON", "RETURNED"} or times != 1:
                self._say("events", made, f"{kind} of {number} is told {times} times and did not happen, or not so often")

    def _told_of(self, event: Happened) -> Iterable[int]:
        """Return the messages of an event, of a whole file those that the file has; none of a delivery's."""
        if event.type in {"DELIVERED", "COMMITTED", "ROLLED_BACK"}:
            return ()
        if "path" not in event.details or "lookup_ids" in event.details:
            return event.numbers
        return [row.number for row in self._history.rows(self._history.live[event.details["path"]])]

    def _holds(self, made: Made, claims: dict[str, tuple[str, int, frozenset[str]]]) -> None:
        """Only the holder of a claim touches what is claimed; claims do not overlap."""
        touched = {file.path for file in made.removed if file.place in MESSAGES}
        claimed = {path: key for key, _, paths in claims.values() for path in paths}
        if made.operation == "finish":
            mine = [(epoch, paths) for key, epoch, paths in claims.values() if key == made.details["key"]]
            if not mine or mine[0][1] != touched or mine[0][0] + 1 != made.details["epoch"]:
                self._say("doubled", made, f"finishes {made.details['key']} epoch {made.details['epoch']} without holding it, or other files")
        elif taken := touched & claimed.keys():
            self._say("doubled", made, f"takes {sorted(taken)[:2]}, which {claimed[min(taken)]} has claimed")
        paths = [path for _, _, each in self._claims.values() for path in each]
        if len(paths) != len(set(paths)):
            self._say("doubled", made, "leaves two claims of one file")
        if made.operation == "claim" and not set(paths) <= self._history.live.keys():
            self._say("lost", made, "claims a file that is not there")

    def _events(self, made: Made, events: list[Happened]) -> None:
        self._history.events += events
        self._history.dropped |= {number: event for event in events if event.type == "DROPPED" for number in event.numbers}
        for event in events:
            if event.type == "DELIVERED" and event.number is not None:
                self._history.delivered[event.number][event.m, event.a] += 1
            if event.type == "COMMITTED" and event.number is not None:
                key = (event.type, event.number, 0, 0)
                self._once[key] += 1
                if self._once[key] > 1:
                    self._say("doubled", made, f"{event.number} is committed twice")


def _shown(body: bytes) -> str:
    """Return the begin of a body, for people."""
    return repr(body[:200])
