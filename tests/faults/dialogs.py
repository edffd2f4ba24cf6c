"""The checker's part of conversations: what was said was heard or its conversation had ended, once, in order, no ghosts, and both ends agree."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from tests.faults.talks import AS_ASKED, GIVEN_UP, TALKERS, WORD, partner_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from tests.faults.history import File, History, Made
    from tests.faults.ledger import Line
    from tests.faults.verdict import Verdict

_ENDS = {"SO": False, "SI": False, "CO": False, "DI": False, "ER": False, "DO": True, "CD": True}
"""Whether a side in this state has ended the dialog."""
_AGREED = {("CO", "CO"), ("CD", "CD"), ("CD",)}
_ONE_IS_GONE = {("CD", "CO"), ("CD", "DO")}
"""What is left when one side has ended with cleanup, and told nobody."""
_AFTER_THE_END = ("the conversation was ended", "the conversation was ended with cleanup", "the conversation endpoint is gone")
_KEPT_BY = frozenset({"merge"})


BOTH_ENDED = "poison.both-ended"
"""What a side sends that has ended after its partner."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message in the hands of its sender's side."""

    message_id: str
    kind: str
    body: bytes
    dialog: str
    side: str
    sequence: int
    final: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Sent:
        envelope = json.loads(dict(row["properties"])["poison.dialog"])
        side = "initiator" if envelope["from_initiator"] else "target"
        kind = (row["message_type"] or "").rpartition("/")[2]
        number = envelope.get("sequence", 0)
        return cls(row["message_id"] or "", kind, row["body"] or b"", envelope["conversation_id"], side, number, envelope.get("final", ""))


@dataclass(slots=True)
class Side:
    """A talker's queue: what it has sent, and its endpoints.

    :ivar sent: without what its broker makes for itself, in the order of commits.
    :ivar newest: by handle, the state and the content of the endpoint's newest version.
    """

    history: History
    sent: list[Sent] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)
    newest: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.history.name

    def has_ended(self, dialog: str) -> bool:
        """Whether it has ended its side of a dialog; one that it does not know was never begun here."""
        states = [state for state, endpoint in self.newest.values() if endpoint["conversation_id"] == dialog]
        return all(_ENDS[state] for state in states)


def check_dialogs(histories: Mapping[str, History], lines: Sequence[Line], verdict: Verdict, *, quiet: bool) -> None:
    """Hold the dialogs of an episode against what is promised.

    :param quiet: whether all passes were finished.
    """
    sides = {name: _replayed(histories[name], verdict) for name in TALKERS if name in histories}
    if len(sides) < len(TALKERS):
        return
    _check_order(lines, {side.name for side in sides.values() if not any(map(_takes, side.history.commits))}, verdict)
    for side in sides.values():
        _check_ghosts(side, lines, verdict, quiet=quiet)
        if quiet:
            _check_carried(side, sides[partner_of(side.name)], verdict)
            _check_dropped(sides[partner_of(side.name)], side, verdict)
            _check_timers(side, verdict)
    if quiet:
        _check_agreement(sides.values(), verdict)


def _takes(made: Made) -> bool:
    """Whether somebody else takes messages out: when they are back, a pass that had claimed those behind them may have received these."""
    return made.foreign and any(file.place == "main" for file in made.removed)


# What commits do ------------------------------------------------------------------------------------------------------


def _replayed(history: History, verdict: Verdict) -> Side:
    side = Side(history)
    for made in history.commits:
        if not made.foreign and made.operation != "restore":
            _step(side, made, verdict)
    return side


def _step(side: Side, made: Made, verdict: Verdict) -> None:
    where = f"{side.name} version {made.version} ({made.operation})"
    for file in made.added:
        if file.place == "_transmission":
            side.sent += _numbered(side, side.history.of_dialogs(file), where, verdict)
        elif file.place == "_conversation":
            _versions(side, made, file, where, verdict)
    if made.operation == "merge":
        _check_merged(side, made, where, verdict)


def _numbered(side: Side, rows: Iterable[Mapping[str, Any]], where: str, verdict: Verdict) -> list[Sent]:
    """Each message of a side has the number after the one before it: what is sent twice, or upon an endpoint that has gone on, has not."""
    found = [sent for sent in map(Sent.of, rows) if sent.sequence]
    last = {(sent.dialog, sent.side): sent.sequence for sent in side.sent}
    for sent in found:
        before = last.get((sent.dialog, sent.side), 0)
        if sent.sequence != before + 1:
            verdict.doubled.append(f"{where}: sends {sent.message_id} ({sent.kind}) after number {before}")
        last[sent.dialog, sent.side] = sent.sequence
    return found


def _versions(side: Side, made: Made, file: File, where: str, verdict: Verdict) -> None:
    """A commit makes versions that were not there: one that is made twice was made without knowing of the other."""
    for row in side.history.of_dialogs(file):
        handle, version = row["conversation_id"], row["lookup_id"]
        if made.operation in _KEPT_BY:
            continue
        if version <= side.versions.get(handle, -1):
            verdict.doubled.append(f"{where}: makes version {version} of {handle} after {side.versions[handle]}")
        side.versions[handle] = version
        side.newest[handle] = row["message_type"], json.loads(row["body"])


def _check_merged(side: Side, made: Made, where: str, verdict: Verdict) -> None:
    """A merge keeps the newest of what it joins."""
    before, after = (
        {
            handle: max(version for each, version in pairs if each == handle)
            for pairs in [[(row["conversation_id"], row["lookup_id"]) for file in files for row in side.history.of_dialogs(file)]]
            for handle, _ in pairs
        }
        for files in (made.removed, made.added)
    )
    if before != after:
        verdict.lost.append(f"{where}: joins {sorted(before.items() ^ after.items())[:3]} away")


# What was said --------------------------------------------------------------------------------------------------------


def _check_carried(side: Side, partner: Side, verdict: Verdict) -> None:
    """What was sent has come to the partner, but for what an end with an error has overtaken."""
    came = {row.message_id for row in partner.history.came.values()}
    last_end: dict[tuple[str, str], int] = {}
    for sent in side.sent:
        if sent.final:
            last_end[sent.dialog, sent.side] = max(sent.sequence, last_end.get((sent.dialog, sent.side), 0))
    for sent in side.sent:
        overtaken = sent.sequence < last_end.get((sent.dialog, sent.side), 0)
        if sent.final == "cleanup" and sent.message_id in came:
            verdict.doubled.append(f"{partner.name} was told of {sent.message_id}, which is an end with cleanup")
        elif sent.kind == BOTH_ENDED:  # it closes the partner's end (see the agreement), and is no message of its queue
            verdict.doubled += [f"{sent.message_id} ({sent.kind}) is a message of {partner.name}"] * (sent.message_id in came)
        elif sent.final != "cleanup" and sent.message_id not in came and not overtaken:
            verdict.lost.append(f"{sent.message_id} ({sent.kind}) of {side.name} never came to {partner.name}")
    sendable = {sent.message_id for sent in side.sent}
    for row in partner.history.came.values():
        if row.message_id.count(":") == 2 and row.message_id not in sendable:
            verdict.doubled.append(f"{row.message_id} came to {partner.name}, and {side.name} has not sent it")


def _check_dropped(side: Side, partner: Side, verdict: Verdict) -> None:
    """What has come leaves by a delivery that commits, or because this side has ended the dialog."""
    kinds = {sent.message_id: sent for sent in partner.sent}
    for number, event in side.history.dropped.items():
        row = side.history.came.get(number)
        sent = None if row is None else kinds.get(row.message_id)
        if sent is None or sent.kind != WORD:
            continue
        why = event.details.get("why") or event.details.get("by", "")
        if why == "it has been received before":
            verdict.doubled.append(f"{sent.message_id} came to {side.name} twice")
        elif why not in {*_AFTER_THE_END, "end conversation"}:
            verdict.lost.append(f"{sent.message_id} was dropped from {side.name}: {event.details}")
        elif not side.has_ended(sent.dialog):
            verdict.lost.append(f"{sent.message_id} was dropped from {side.name} ({why}), and nobody has ended {sent.dialog} there")


def _check_order(lines: Iterable[Line], queues: Container[str], verdict: Verdict) -> None:
    """In a conversation, words and EndDialog are received in the order in which they were sent."""
    newest: dict[tuple[str, str], int] = {}
    for line in lines:
        if line["kind"] == "again":  # what had been received and not committed
            newest.clear()
        if line["kind"] == "call" and line["queue"] in queues and (line.get("what") or "").rpartition("/")[2] in {WORD, "EndDialog"}:
            place, number = (line["queue"], line["dialog"]), int(line["mid"].rpartition(":")[2])
            if number < newest.get(place, 0):
                verdict.order.append(f"{line['mid']} was received in {line['queue']} after number {newest[place]}")
            newest[place] = max(number, newest.get(place, 0))


# What deliveries did --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Deeds:
    """What was done in deliveries that committed, and outside.

    :ivar calls: of them, by id, what it has noted.
    :ivar possible: these, and others of the same messages that may have been the one that was found out.
    :ivar hung_up: handles that somebody wanted to end from outside.
    """

    calls: dict[str, Line]
    possible: dict[str, Line]
    others: set[str]
    hung_up: set[str]

    @classmethod
    def of(cls, side: Side, lines: Iterable[Line]) -> _Deeds:
        """Of a message that was settled the last call counts, and of one that was not, none.

        Where deliveries began again, or one came late, an earlier call may have been found out: it counts when what it has sent is there.
        """
        settled = {row.number for row in side.history.settled}
        last: dict[int, Line] = {}
        earlier: dict[int, list[Line]] = defaultdict(list)
        spoke = {json.loads(sent.body)[0] for sent in side.sent if sent.kind == WORD}
        others: set[str] = set()
        hung_up: set[str] = set()
        dialogs: dict[str, str] = {}
        for line in lines:
            if line["kind"] == "again":
                for number, before in last.items():
                    earlier[number].append(before)
            if line.get("queue") != side.name:
                continue
            if line["kind"] in {"call", "late call"} and "call" in line:
                others.add(line["call"])
                dialogs[line["call"]] = line["dialog"]
            elif line["kind"] == "end" and "call" in line:
                last[line["id"]] = line
            elif line["kind"] == "late end" and "call" in line:
                earlier[line["id"]].append(line)
            elif line["kind"] == "ends":
                hung_up.add(line["handle"])
        found = {number: [each for each in (last.get(number), *earlier[number]) if each and each["how"] == "ok"] for number in settled}
        told = {number: _told(each, spoke) for number, each in found.items() if each}
        calls, possible = (
            {line["call"]: line | {"dialog": dialogs[line["call"]]} for line in each}
            for each in (told.values(), [line for each in found.values() for line in each])
        )
        return cls(calls, possible, others - calls.keys(), hung_up)


def _told(calls: Sequence[Line], spoke: Container[str]) -> Line:
    """Return the call whose words are there; else one that has said nothing; else the last one."""
    return next((line for line in calls if line["call"] in spoke), next((line for line in calls if not line["said"]), calls[0]))


def _check_ghosts(side: Side, lines: Iterable[Line], verdict: Verdict, *, quiet: bool) -> None:
    """What a delivery has sent is there when it has committed, all of it, once, and nothing of any other delivery."""
    deeds = _Deeds.of(side, lines)
    said = Counter((by, number) for sent in side.sent if sent.kind == WORD for by, number, _ in [json.loads(sent.body)])
    for (by, number), times in said.items():
        if by in deeds.others:
            verdict.doubled.append(f"what delivery {by} has sent from {side.name} is there, and it was rolled back")
        if times > 1:
            verdict.doubled.append(f"number {number} of {by} was sent {times} times from {side.name}")
    _check_ends(side, deeds, verdict)
    if quiet:
        _check_effects(side, deeds, said, verdict)


def _check_ends(side: Side, deeds: _Deeds, verdict: Verdict) -> None:
    """Who is told that a dialog has ended, was told by somebody who has ended it."""
    hung_up = {endpoint["conversation_id"] for handle, (_, endpoint) in side.newest.items() if handle in deeds.hung_up}
    ended = hung_up | {line["dialog"] for line in deeds.possible.values() if line["ended"] == "end"}
    for sent in side.sent:
        code, text = _error_of(sent.body) if sent.kind == "Error" else (0, "")
        of_nobody = sent.kind == "EndDialog" and not sent.final and sent.dialog not in ended
        if of_nobody or (code == AS_ASKED and text not in deeds.possible) or (code == GIVEN_UP and sent.dialog not in hung_up):
            verdict.doubled.append(f"{sent.message_id} ({sent.kind} {code}) tells of an end, and nobody has ended {sent.dialog} in {side.name}")


def _check_effects(side: Side, deeds: _Deeds, said: Counter[tuple[str, int]], verdict: Verdict) -> None:
    """What a delivery that committed has done is there."""
    for call, line in deeds.calls.items():
        if any(not said[call, number] for number in range(line["said"])):
            verdict.lost.append(f"{side.name} {line['id']} was settled, and what its delivery {call} has sent is nowhere")
        if line["ended"] and not side.has_ended(line["dialog"]):
            verdict.lost.append(f"{side.name} {line['id']} was settled, and its delivery had ended {line['dialog']}, which goes on")


def _error_of(body: bytes) -> tuple[int, str]:
    code, text = ET.fromstring(body)
    return int(code.text or 0), text.text or ""


def _check_timers(side: Side, verdict: Verdict) -> None:
    """Every timer and every end of a lifetime has come when all is quiet."""
    for handle, (state, endpoint) in side.newest.items():
        running = [name for name in ("timer_at", "expires_at") if endpoint.get(name) is not None and not _ENDS[state]]
        if state == "ER":
            running = [name for name in running if name == "timer_at"]
        if running:
            verdict.stuck.append(f"{side.name}: {handle} is in state {state}, and its {running} never came")


# Both ends ------------------------------------------------------------------------------------------------------------


def _check_agreement(sides: Iterable[Side], verdict: Verdict) -> None:
    """They converse, or both have ended; a side that cleaned up has told nobody."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
    for side in sides:
        for state, endpoint in side.newest.values():
            found[endpoint["conversation_id"]].append((state, endpoint))
    for dialog, ends in sorted(found.items()):
        states = tuple(sorted(state for state, _ in ends))
        if states in _AGREED or (states in _ONE_IS_GONE and any(endpoint.get("cleaned") for _, endpoint in ends)):
            continue
        verdict.log.append(f"the ends of {dialog} do not agree: {states}")
