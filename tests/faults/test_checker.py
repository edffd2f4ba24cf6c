"""The checker itself: it passes a history that is right, and names what is wrong with one that is not, a case for each of its rules."""

from __future__ import annotations

import json
import math
import os
import re
import time
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pytest

from airflow_poison.passes.alter import declare
from airflow_poison.passes.send import send
from airflow_poison.values.schema import DESTINATION
from tests.faults import checker, ledger
from tests.faults.actor import Place, Task
from tests.faults.actors import act_quietly
from tests.faults.by_hand import Hand
from tests.faults.checker import Call, Sight, check
from tests.faults.places import copied, entered
from tests.faults.verdict import Verdict
from tests.faults.world import LEASE, RETENTION, queues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Queues with messages: in ``engine`` some have been received, in ``move`` some wait for a retry and some are claimed."""
    with entered(tmp_path_factory.mktemp("history"), "engine") as there:
        for name, rules in queues().items():
            declare(there.store, name, rules.policy, there.clock)
        sends(there, "engine", "abcdef")
        act_quietly(Task("receive", "engine", "first", 3), there)
        act_quietly(Task("alert", "engine", "first", 3), there)
        sends(there, "move", "ghijkl")
        os.environ[ledger.QUEUE] = "move"  # put back with the others
        act_quietly(Task("receive", "move", "second", 3), there)
        sends(there, "move", "mn")
        claim = there.store.open("move").claim("third", lease=LEASE, now=there.clock.now(), max_messages=2, exclusive=False)
        assert claim is not None
        sends(there, "move", "op")
        yield there


@pytest.fixture
def place(history: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The same in a folder of its own."""
    return copied(history, tmp_path, monkeypatch)


def sends(place: Place, queue: str, ids: str) -> None:
    bodies = [b"ok", b"bad"] * (len(ids) // 2)
    batch = pa.record_batch({"body": bodies, "message_id": [*ids]})
    sent = send(place.store.open(queue), [batch], key=f"send-{ids}", clock=place.clock)
    ledger.note("sent", queue=queue, key=f"send-{ids}", first=sent.first_lookup_id, ids=[*ids])


def found(place: Place) -> Verdict:
    return check(place.folder, {})


def test_a_history_without_faults_passes(place: Place) -> None:
    assert found(place).lines() == []


# What is wrong, and what the checker must say -------------------------------------------------------------------------


def lines_of(place: Place, kind: str) -> list[ledger.Line]:
    return [line for line in ledger.Reader(place.folder).news() if line["kind"] == kind]


def called(queue: str, number: int, counts: tuple[int, int], how: str = "", run: int = 2) -> None:
    ledger.append(os.environ[ledger.FOLDER], "call", run, queue=queue, id=number, mid="?", a=counts[1], m=counts[0], pid=run, child=False)
    if how:
        ledger.append(os.environ[ledger.FOLDER], "end", run, queue=queue, id=number, how=how, pid=run)


def told(**facts: object) -> None:
    ledger.note("told", **{"queue": "engine", "key": uuid4().hex, "event": "MOVED_POISON", "count": 1, "ids": [1], **facts})


def success_called_again(place: Place) -> None:
    settled = next(line["id"] for line in lines_of(place, "end") if line["how"] == "ok" and line["queue"] == "engine")
    called("engine", settled, (0, 1))


def nobody_told(place: Place) -> None:
    path = ledger.path_in(place.folder)
    path.write_bytes(b"".join(line for line in path.read_bytes().splitlines(keepends=True) if b'"told"' not in line))


def alert_changed(place: Place) -> None:
    told(**{name: value for name, value in lines_of(place, "told")[0].items() if name not in {"kind", "run", "count"}}, count=99)


def uncounted_before_the_next_call(place: Place) -> None:
    called("activation", 1, (0, 1), "bad")
    called("activation", 1, (0, 1), "bad", run=3)


def file_again(place: Place) -> None:
    hand = Hand(place, "engine")
    adds = [line for path in hand.entries for line in path.read_text().splitlines() if '"add"' in line and "_event" in line]
    with hand.entries[-1].open("a") as file:
        file.write(adds[0] + "\n")


def two_places(place: Place) -> None:
    hand = Hand(place, "move")
    number = hand.rows(hand.live("main")[-1])[0]
    other = Hand(place, "broker")
    sends(place, "broker", "yz")
    other.commit("append", [other.written([number | {"lookup_id": 3}], "main")])


def left_and_there(place: Place) -> None:
    hand = Hand(place, "move")
    ((first, *_),) = (hand.rows(path) for path in hand.live("main")[-1:])
    hand.commit("append", [hand.written([first | {"lookup_id": 11, "message_id": "g"}], "main")])


def taken(place: Place, operation: str) -> None:
    hand = Hand(place, "move")
    hand.commit(operation, [], hand.live("main")[-1:])


def changed_row(place: Place, operation: str, **columns: int) -> None:
    hand = Hand(place, "move")
    (path,) = hand.live("retry")
    hand.commit(operation, [hand.written([row | columns for row in hand.rows(path)], "retry", _m(path))], [path])


def _m(path: str) -> int:
    return int(path.split("/")[1].partition("=")[2])


def moved_back(place: Place) -> None:
    hand = Hand(place, "move")
    (path,) = hand.live("retry")
    hand.commit("move", [hand.written(hand.rows(path), "main", 0)], [path])


def moved_untold(place: Place) -> None:
    hand = Hand(place, "move")
    (path,) = hand.live("retry")
    hand.commit("move", [hand.written(hand.rows(path), "poison", _m(path))], [path])


def happened(place: Place, kind: str, number: int, m: int = 0, a: int = 0) -> None:
    hand = Hand(place, "engine")
    hand.commit("finish", [hand.event(kind, number, m, a)], [], key="none", epoch=1)


def finished_without_a_claim(place: Place) -> None:
    hand = Hand(place, "move")
    hand.commit("finish", [], hand.live("main")[-1:], key="nobody", epoch=1)


def finished_in_another_epoch(place: Place) -> None:
    hand = Hand(place, "move")
    hand.commit("finish", [], [*hand.live("_claim"), next(path for path in hand.live("main") if len(hand.rows(path)) == 2)], key="third", epoch=2)


def claimed_taken(place: Place) -> None:
    hand = Hand(place, "move")
    (claim,) = hand.live("_claim")
    path = json.loads(hand.rows(claim)[0]["body"])["files"][0]["path"]
    hand.commit("replace", [hand.written(hand.rows(path), "main")], [path])


def claimed_twice(place: Place) -> None:
    hand = Hand(place, "move")
    (claim,) = hand.live("_claim")
    hand.commit("claim", [hand.written([row | {"message_id": "another"} for row in hand.rows(claim)], "_claim")], [])


def claimed_nothing(place: Place) -> None:
    hand = Hand(place, "move")
    (claim,) = hand.live("_claim")
    (row,) = hand.rows(claim)
    body = json.loads(row["body"])
    body["files"][0]["path"] += "-gone"
    hand.commit("claim", [hand.written([row | {"message_id": "another", "body": json.dumps(body).encode()}], "_claim")], [claim])


def events_lost_in_joining(place: Place) -> None:
    hand = Hand(place, "engine")
    paths = hand.live("_event")
    rows = [row for path in paths for row in hand.rows(path)]
    hand.commit("compact", [hand.written(rows[1:], "_event", name=f"{3:020d}-{9:020d}-")], paths)


def event_of_another_version(place: Place) -> None:
    hand = Hand(place, "engine")
    path = hand.event("DROPPED", 1)
    other = path.replace(f"{len(hand.entries):020d}", f"{1:020d}")
    (hand.root / path).rename(hand.root / other)
    hand.commit("replace", [other])


def no_control_row(place: Place) -> None:
    hand = Hand(place, "move")
    hand.commit("alter", [], hand.live("_ctl"))


def restored_wrongly(place: Place) -> None:
    hand = Hand(place, "move")
    hand.commit("", [], hand.live("main"))
    hand.commit("restore", [], [], to=len(hand.entries) - 2)


def in_the_outbox(place: Place) -> None:
    hand = Hand(place, "move")
    path = hand.live("main")[-1]
    rows = [row | {"properties": [(DESTINATION, "engine")]} for row in hand.rows(path)]
    events = [hand.event("REQUEUED", row["lookup_id"], place="engine") for row in rows]
    hand.commit("replace", [hand.written(rows, "_outbox"), *events], [path])


def hole(place: Place) -> None:
    log = Hand(place, "move").entries
    log[-1].rename(log[-1].with_name(f"{len(log):020d}.json"))


def file_gone(place: Place) -> None:
    hand = Hand(place, "move")
    (hand.root / hand.live("main")[-1]).unlink()


def removed(place: Place, path: str, at: float) -> None:
    ledger.note("removed", queue="move", path=path, at=at)


def removed_too_early(place: Place) -> None:
    """A file that a commit has just taken out; that of the claim, say."""
    hand = Hand(place, "move")
    path = hand.live("main")[-1]
    hand.commit("replace", [hand.written(hand.rows(path), "main")], [path])
    removed(place, path, time.time() + RETENTION.total_seconds() - 1)


def removed_before_it_came(place: Place) -> None:
    removed(place, Hand(place, "move").live("main")[-1], time.time() - 1_000)


def removed_while_it_lives(place: Place) -> None:
    removed(place, Hand(place, "move").live("main")[-1], time.time() + 1_000)


def entry_removed_too_early(place: Place) -> None:
    overtaken = Hand(place, "move").entries[6].stat().st_mtime
    removed(place, f"_delta_log/{5:020d}.json", overtaken + RETENTION.total_seconds() - 1)


def acknowledged_and_gone(place: Place) -> None:
    ledger.note("committed", queue="move", version=len(Hand(place, "move").entries) - 1, mark="another")


def settled_without_success(place: Place) -> None:
    path = ledger.path_in(place.folder)
    path.write_bytes(b"".join(line.replace(b'"how": "ok"', b'"how": "bad"') for line in path.read_bytes().splitlines(keepends=True)))


def nowhere(place: Place) -> None:
    """A message that a commit takes out without a word is nowhere, whatever the rules of commits say."""
    taken(place, "move")


def _append(place: Place, rows: list[dict[str, object]]) -> None:
    hand = Hand(place, "move")
    like = hand.rows(hand.live("main")[-1])[0]
    hand.commit("append", [hand.written([like | row for row in rows], "main")])


def two_events(place: Place) -> None:
    hand = Hand(place, "engine")
    hand.commit("replace", [hand.event("DROPPED", 2), hand.event("DROPPED", 2)])


def falls(place: Place, column: str) -> None:
    for count in (5, 4):
        changed_row(place, "replace", **{column: count})


def received_backwards(_: Place) -> None:
    for number in (5, 4):
        called("broker", number, (0, 0))


WRONG: dict[str, tuple[str, str, Callable[[Place], None]]] = {
    "an acknowledged send is not there": (
        "lost",
        "acknowledged as 1000",
        lambda _: ledger.note("sent", queue="engine", key="x", first=1_000, ids=["o", "p"]),
    ),
    "an acknowledged commit is not there": ("lost", "is not in the log", acknowledged_and_gone),
    "a message is nowhere": ("lost", "is nowhere", nowhere),
    "a verb takes messages out": ("lost", "takes .* out$", lambda place: taken(place, "compact")),
    "a replacement takes messages out untold": ("lost", "tells nobody", lambda place: taken(place, "replace")),
    "the outbox is emptied elsewhere": ("lost", "not in the outbox", lambda place: taken(place, "remove_outbox")),
    "a claim of a file that is not there": ("lost", "claims a file that is not there", claimed_nothing),
    "a restore leads elsewhere": ("lost", "does not lead back", restored_wrongly),
    "a settled message had no success": ("lost", "no handler had returned", settled_without_success),
    "a file is gone": ("lost", "are gone", file_gone),
    "a file is removed within the retention": ("lost", "within the retention", removed_too_early),
    "a file is removed while it lives": ("lost", "within the retention", removed_while_it_lives),
    "a file is removed before it comes": ("lost", "before a commit added it", removed_before_it_came),
    "a log entry is removed within the retention": ("lost", "the entry of version 5", entry_removed_too_early),
    "a success is called again": ("doubled", "had succeeded", success_called_again),
    "a message is in two places": ("doubled", "is in 2 places", two_places),
    "a message has left and is there": ("doubled", "has left and is there|came before", left_and_there),
    "a message id comes twice": ("doubled", "which came before", lambda place: _append(place, [{"lookup_id": 11}])),
    "a lookup id is given twice": ("doubled", "adds the ids", lambda place: _append(place, [{"lookup_id": 3, "message_id": "q"}])),
    "a message is added twice": ("doubled", "adds a message twice", lambda place: _append(place, [{"lookup_id": 11, "message_id": "q"}] * 2)),
    "an event file is added again": ("doubled", "again", file_again),
    "a file is removed that is not there": (
        "doubled",
        "which is not there",
        lambda place: Hand(place, "move").commit("move", [], ["sub_queue=main/move_count=0/none.parquet"]),
    ),
    "a message is brought back": (
        "doubled",
        "brings back",
        lambda place: Hand(place, "move").commit("move", [Hand(place, "move").written([{"lookup_id": 1, "message_id": "g"}], "main")]),
    ),
    "a pass finishes without a claim": ("doubled", "without holding it", finished_without_a_claim),
    "a pass finishes in another epoch": ("doubled", "without holding it", finished_in_another_epoch),
    "a claimed file is taken": ("doubled", "has claimed", claimed_taken),
    "two claims of one file": ("doubled", "two claims", claimed_twice),
    "a message is committed twice": ("doubled", "committed twice", lambda place: happened(place, "COMMITTED", 1)),
    "a call that no event tells": ("uncounted", "no event tells", lambda _: called("engine", 1, (0, 7))),
    "a call that is not counted": ("uncounted", "and then", uncounted_before_the_next_call),
    "an attempt that no call has made": ("innocents_charged", "engine 2 at", lambda place: happened(place, "DELIVERED", 2, 0, 9)),
    "a count that no call has seen": ("innocents_charged", "activation 1", lambda _: called("activation", 1, (0, 3))),
    "nobody is told": ("alerts_missing", "engine", nobody_told),
    "an alert is repeated with other facts": ("events", "was told with", alert_changed),
    "an alert of nothing": ("events", "alerts with different keys", lambda _: told(event="DROPPED")),
    "an event of another version": ("events", "of another version", event_of_another_version),
    "a move that is not told": ("events", "not one event of", moved_untold),
    "a move that did not happen": ("events", "did not happen", lambda place: happened(place, "MOVED_RETRY", 2)),
    "an event is told twice": ("events", "did not happen, or not so often", two_events),
    "events are lost in joining": ("events", "joins other events", events_lost_in_joining),
    "a move count falls": ("fell", " had .* and has ", moved_back),
    "an abort count falls": ("fell", " had .* and has ", lambda place: falls(place, "abort_count")),
    "a crash count falls": ("fell", " had .* and has ", lambda place: falls(place, "crash_count")),
    "a split changes counts": ("fell", "changes", lambda place: changed_row(place, "split", abort_count=5)),
    "an earlier message comes later": (
        "order",
        "broker 4 was received after 5",
        received_backwards,
    ),
    "a log with a hole": ("log", "holes", hole),
    "no control row": ("log", "0 control rows", no_control_row),
    "the check finds something": ("log", "check finds", lambda _: ledger.note("finding", queue="engine", what="damage")),
    "a letter stays in the outbox": ("stuck", "still in the outbox", in_the_outbox),
}


@pytest.mark.parametrize(("kind", "words", "wrong"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told(place: Place, kind: str, words: str, wrong: Callable[[Place], None]) -> None:
    wrong(place)
    verdict = found(place)
    assert [line for line in getattr(verdict, kind) if re.search(words, line)], verdict.lines()


# What nobody knows any more over a bucket ------------------------------------------------------------------------------


def entered_on(*nodes: str) -> list[ledger.Line]:
    """Return the lines of runs from 1 on, each with an attempt that is named after it."""
    return [
        line
        for run, node in enumerate(nodes, 1)
        for line in ({"kind": "entered", "run": run, "node": node}, {"kind": "made", "run": run, "attempt": f"of {run}"})
    ]


HELD = {"kind": "held", "run": 2, "earlier": ["of 1"]}
LOST = {"kind": "node_lost", "run": 0, "node": "a"}
KEPT = {"kind": "kept", "run": 1}


@pytest.mark.parametrize(
    ("lines", "forgotten"),
    [
        ([*entered_on("a", "b"), HELD], True),
        ([*entered_on("a", "a"), HELD], False),
        ([*entered_on("a", "a"), LOST], True),
        ([*entered_on("b", "a"), LOST], False),
        ([*entered_on("a", "b"), KEPT, HELD, LOST], False),
        ([*entered_on("a", "b"), HELD, KEPT], True),
    ],
    ids=["another node goes on", "the same node", "a lost node", "another lost node", "sealed before", "sealed too late"],
)
def test_a_call_is_forgotten_when_its_node_is_out_of_sight(lines: list[ledger.Line], forgotten: bool) -> None:  # noqa: FBT001
    called = len(entered_on("a", "b")) - 1
    assert (Sight.of(lines).lost_at(1, called) < len(lines)) == forgotten


def test_calls_after_another_node_has_gone_on_are_told_apart() -> None:
    before, late = ({"kind": "call", "run": 1, "id": number} for number in range(2))
    lines = [*entered_on("a", "b"), before, HELD, late]
    assert Sight.of(lines).heard(lines) == [*entered_on("a", "b"), before, HELD, {"kind": "again", "run": 0}, late | {"kind": "late call"}]


def test_what_is_called_after_another_node_has_gone_on_is_forgotten_at_once() -> None:
    lines = [*entered_on("a", "b"), HELD, {"kind": "call", "run": 1, "id": 1}, KEPT, LOST]
    assert Sight.of(lines).lost_at(1, lines.index(KEPT) - 1) == lines.index(KEPT) - 1


@pytest.mark.parametrize(
    ("places", "succeeded", "found"),
    [([1, 5], [], 0), ([1, 5, 9], [], 1), ([1, 5, 9], [7], 1), ([1, 5, 9], [3], 0), ([1, 5, 9, 13], [3, 7], 0), ([1, 5, 9, 13], [3], 1)],
    ids=["one probe", "a second one", "a success that is too late", "a second one after a success", "a third one after two", "a third one after one"],
)
def test_a_run_probes_once_more_after_a_success(places: list[int], succeeded: list[int], found: int) -> None:
    made, verdict = [Call((0, 0), 7, (7, 1), at, math.inf, late=False, how="bad") for at in places], Verdict()
    checker._check_counted_with_outages("weather 30", made, {7: succeeded}, verdict)
    assert len(verdict.uncounted) == found
