"""The checker's part of conversations: it passes a history that is right, and names what is wrong with one that is not, a case for each rule."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.values import fault_points
from tests.faults import ledger
from tests.faults.actor import Actor, Place, Task
from tests.faults.actors import act_quietly
from tests.faults.by_hand import Hand
from tests.faults.checker import check
from tests.faults.dialogs import check_dialogs
from tests.faults.history import read_histories
from tests.faults.inject import Injector, Plan, What
from tests.faults.places import copied, entered
from tests.faults.rules_of_commits import check_commits
from tests.faults.talkers import begins, is_quiet, prepare_talkers
from tests.faults.talks import TALKERS, WORD, Said
from tests.faults.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DEEDS = ("nothing", "fail once", "nothing")


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One dialog: ``talk-a`` has said three words, ``talk-b`` has rolled the second one back once."""
    with entered(tmp_path_factory.mktemp("talk"), "talk-b") as there:
        prepare_talkers(there)
        said = [(WORD, Said("first", number, deed).to_body()) for number, deed in enumerate(_DEEDS)]
        begins(Actor.of(Task("send", "talk-a", "first", 1), there), [said])
        act_quietly(Task("receive", "talk-b", "second", 1), there)
        assert is_quiet(there)
        yield there


@pytest.fixture
def place(talk: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The same in a folder of its own."""
    return copied(talk, tmp_path, monkeypatch)


def found(place: Place) -> Verdict:
    return check(place.folder, {})


def test_a_history_without_faults_passes(place: Place) -> None:
    assert found(place).lines() == []


# What is wrong, and what the checker must say -------------------------------------------------------------------------


def lines_of(place: Place, kind: str) -> list[ledger.Line]:
    return [line for line in ledger.Reader(place.folder).news() if line["kind"] == kind and line["queue"] in TALKERS]


def sends(place: Place, number: int, by: tuple[str, int] = ("later", 0), queue: str = "talk-a", **changes: Any) -> dict[str, Any]:
    """Let a side send once more, by hand; return the row."""
    hand, first = Hand(place, "talk-a"), "sub_queue=_transmission/move_count=0/0*.parquet"
    path = min(hand.root.glob(first))
    like = hand.rows(str(path.relative_to(hand.root)))[0]
    envelope = json.loads(dict(like["properties"])["poison.dialog"]) | {"sequence": number} | changes.pop("envelope", {})
    name = f"{envelope['conversation_id']}:initiator:{number}"
    row = like | {"message_id": name, "body": Said(*by, "nothing").to_body(), "properties": [("poison.dialog", json.dumps(envelope))]} | changes
    hand = Hand(place, queue)
    hand.commit("transact", [hand.written([row], "_transmission")])
    return row


def comes(place: Place, row: dict[str, Any]) -> None:
    """Let a message come to ``talk-b``, by hand."""
    hand = Hand(place, "talk-b")
    hand.commit("append", [hand.written([row | {"lookup_id": len(_DEEDS) + 1}], "main")])


def is_dropped(place: Place, **details: Any) -> None:
    hand = Hand(place, "talk-b")
    hand.commit("finish", [hand.event("DROPPED", 1, **details)], [], key="none", epoch=1)


def becomes(place: Place, later: int = 1, **changes: Any) -> None:
    """Make a version of the endpoint of ``talk-b``, by hand."""
    hand = Hand(place, "talk-b")
    row = max((row for path in hand.live("_conversation") for row in hand.rows(path)), key=lambda row: int(row["lookup_id"]))
    body = json.loads(row["body"]) | changes
    row = row | {"lookup_id": row["lookup_id"] + later, "body": json.dumps(body).encode(), "message_type": body["state"]}
    hand.commit("transact", [hand.written([row], "_conversation")])


def is_merged_away(place: Place) -> None:
    hand = Hand(place, "talk-b")
    hand.commit("merge", [], hand.live("_conversation"))


def has_noted(place: Place, **changes: Any) -> None:
    """Change what the last delivery has noted of itself."""
    line = lines_of(place, "end")[-1]
    facts = {name: value for name, value in (line | changes).items() if name not in {"kind", "run"}}
    ledger.append(place.folder, "end", line["run"], **facts)


def is_called_backwards(place: Place) -> None:
    facts = {name: value for name, value in lines_of(place, "call")[0].items() if name not in {"kind", "run"}}
    ledger.append(place.folder, "call", 1, **facts)


def of_rolled_back(place: Place) -> tuple[str, int]:
    (call,) = (line["call"] for line in lines_of(place, "end") if line["how"] == "bad")
    return call, 0


def error(code: int) -> dict[str, Any]:
    body = f"<Error><Code>{code}</Code><Description>?</Description></Error>".encode()
    return {"message_type": "https://schemas.microsoft.com/SQL/ServiceBroker/Error", "body": body}


END_DIALOG: dict[str, Any] = {"message_type": "https://schemas.microsoft.com/SQL/ServiceBroker/EndDialog", "body": b""}
WRONG: dict[str, tuple[str, str, Callable[[Place], object]]] = {
    "a message never comes": ("lost", "initiator:4 .* never came to talk-b", lambda place: sends(place, 4)),
    "a merge takes the newest versions away": ("lost", r"joins .* away", is_merged_away),
    "a message is dropped without a reason": ("lost", "initiator:1 was dropped", lambda place: is_dropped(place, why="no reason")),
    "a message is dropped from a dialog that goes on": (
        "lost",
        "nobody has ended",
        lambda place: is_dropped(place, why="the conversation was ended"),
    ),
    "a message goes with a dialog that goes on": ("lost", "nobody has ended", lambda place: is_dropped(place, by="end conversation")),
    "what a delivery has sent is nowhere": ("lost", "is nowhere", lambda place: has_noted(place, said=1)),
    "what a delivery has ended goes on": ("lost", "goes on", lambda place: has_noted(place, ended="end")),
    "a number is used twice": ("doubled", r"sends .*:initiator:3 .* after number 3", lambda place: sends(place, 3)),
    "a number is left out": ("doubled", r"sends .*:initiator:5 .* after number 3", lambda place: sends(place, 5)),
    "a version is made twice": ("doubled", "makes version", lambda place: becomes(place, later=0)),
    "a message is received twice": ("doubled", "came to talk-b twice", lambda place: is_dropped(place, why="it has been received before")),
    "a message comes that nobody has sent": (
        "doubled",
        "has not sent it",
        lambda place: comes(place, sends(place, 4) | {"message_id": "another:initiator:1"}),
    ),
    "an end with cleanup is told": (
        "doubled",
        "which is an end with cleanup",
        lambda place: comes(place, sends(place, 4, **END_DIALOG, envelope={"final": "cleanup"})),
    ),
    "a ghost": ("doubled", "it was rolled back", lambda place: sends(place, 1, of_rolled_back(place), "talk-b", envelope={"from_initiator": False})),
    "a word is sent twice": ("doubled", "number 1 of first was sent 2 times", lambda place: sends(place, 4, ("first", 1))),
    "an EndDialog of nobody": ("doubled", "EndDialog 0. tells of an end", lambda place: sends(place, 4, **END_DIALOG)),
    "an Error of no delivery": ("doubled", "Error 7. tells of an end", lambda place: sends(place, 4, **error(7))),
    "an Error of nobody outside": ("doubled", "Error 9. tells of an end", lambda place: sends(place, 4, **error(9))),
    "an earlier word comes later": ("order", "was received in talk-b after number 3", is_called_backwards),
    "a timer never comes": ("stuck", "timer_at.* never came", lambda place: becomes(place, timer_at="2013-01-01T00:00:00+00:00")),
    "a lifetime never ends": ("stuck", "expires_at.* never came", lambda place: becomes(place, expires_at="2013-01-01T00:00:00+00:00")),
    "the ends do not agree": ("log", "do not agree", lambda place: becomes(place, state="CD")),
}


@pytest.mark.parametrize(("kind", "words", "wrong"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told(place: Place, kind: str, words: str, wrong: Callable[[Place], object]) -> None:
    wrong(place)
    verdict = found(place)
    assert [line for line in getattr(verdict, kind) if re.search(words, line)], verdict.lines()


@pytest.mark.parametrize("point", ["before_effect", "after_effect"])
def test_a_delivery_whose_deeds_cannot_be_written_down_has_not_committed(place: Place, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = [(WORD, Said("third", number, "nothing").to_body()) for number in range(2)]
    begins(Actor.of(Task("send", "talk-a", "third", 1), place), [said])
    Injector(Plan(What.ERROR, f"delivery.dialogs.{point}", number=errno.ENOSPC)).install()
    with pytest.raises(OSError, match="injected"):
        act_quietly(Task("receive", "talk-b", "fourth", 1), place)
    fault_points.install(None)
    monkeypatch.setenv(ledger.RUN, "2")
    act_quietly(Task("receive", "talk-b", "fourth", 1), place)
    assert is_quiet(place)
    assert len([line for line in lines_of(place, "call") if line["mid"].endswith(":1")]) == 3
    assert found(place).lines() == []


def test_an_end_with_an_error_overtakes_what_has_not_left(place: Place) -> None:
    sends(place, 4)
    comes(place, sends(place, 5, **error(127), envelope={"final": "error"}))
    assert not [line for line in found(place).lines() if "never came" in line]


def test_what_a_stranger_has_taken_may_come_after_what_was_behind_it(place: Place) -> None:
    is_called_backwards(place)
    assert found(place).order
    comes(place, sends(place, 4))
    hand = Hand(place, "talk-b")
    hand.commit("", [], hand.live("main"))
    assert not found(place).order


def test_a_late_delivery_that_was_found_out_is_the_one_that_counts(place: Place) -> None:
    """A later holder has called the handler again, and its node was lost; the one after it has found what the first one did late."""
    late, end = lines_of(place, "call")[0], lines_of(place, "end")[0] | {"said": 1}
    sends(place, 1, (late["call"], 0), "talk-b", envelope={"from_initiator": False})
    lines = [
        *(line for line in ledger.Reader(place.folder).news() if line.get("call") != late["call"]),
        *(late | {"call": "lost"}, end | {"call": "lost"}),
    ]

    def told(more: list[ledger.Line]) -> list[str]:
        verdict = Verdict()
        histories = read_histories(Path(place.folder), verdict)
        for history in histories.values():
            check_commits(history, verdict)
        check_dialogs(histories, [*lines, *more], verdict, quiet=True)
        return [line for line in verdict.lines() if "its delivery" in line]

    assert len(told([])) == 1
    assert told([late | {"kind": "late call"}, end | {"kind": "late end"}]) == []
