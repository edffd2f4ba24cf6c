"""kill -9 of a worker whose handlers act in conversations: nothing is lost, nothing is sent twice, nothing of a rolled-back delivery is seen."""

from __future__ import annotations

import json
import signal
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from airflow_poison.delivery import failurelog
from airflow_poison.delivery.journal import MessageState
from airflow_poison.delivery.recovered import read_history
from airflow_poison.values import fault_points
from tests.given import forked
from tests.given.endpoints import deliveries
from tests.given.reading import told
from tests.sessions import dialog_worker
from tests.sessions.dialog_worker import deliver, die_at

if TYPE_CHECKING:
    from pathlib import Path

DIALOGS = [
    "d1:1:answer first",
    "d2:1:answer no,savepoint,track",  # until the fourth failure ends it
    "d1:2:answer second,ask more",
    "d3:1:answer no,raise-once,answer yes",
    "d1:3:answer third,end",
    "d1:4:answer never",  # discarded
    "d3:2:end-error 7",
    "d4:1:ok",
    "d4:2:EndDialog",
]


class KilledError(BaseException):
    """The end of a worker, as far as its journal knows."""


@dataclass(frozen=True)
class Worked:
    code: int
    said: dict[str, Any]

    @property
    def seen(self) -> Any:
        return self.said["seen"]

    @property
    def told(self) -> list[tuple[MessageState, int, int]]:
        return told(self.said["words"])


def work(folder: Path, messages: list[str] = DIALOGS, killed_at: str = "", isolation: str = "none") -> Worked:
    done = forked.run(dialog_worker.main, folder, isolation, killed_at, messages)
    lines = done.printed.splitlines()
    return Worked(done.code, json.loads(lines[-1]) if lines else {})


def work_here(folder: Path, killed_at: str = "", messages: list[str] = DIALOGS) -> Worked:
    """Work in this process, which lives on; what is killed writes nothing more."""

    def die() -> None:
        raise KilledError

    die_at(killed_at, die)
    try:
        return Worked(0, deliver(folder, "none", messages))
    except KilledError:
        return Worked(-signal.SIGKILL, {})
    finally:
        fault_points.install(None)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    seen = work_here(tmp_path_factory.mktemp("undisturbed")).seen
    assert [(name, kind, body, number) for name, kind, body, number in seen["sent"] if name == "d1"] == [
        ("d1", "Answer", "first", 1),
        ("d1", "Answer", "second", 2),
        ("d1", "Question", '{"asks": "more"}', 3),
        ("d1", "Answer", "third", 4),
        ("d1", "EndDialog", "", 5),
    ]
    assert {name: each["state"] for name, each in seen["states"].items()} == {"d1": "DO", "d2": "CD", "d3": "CD", "d4": "CD"}
    return seen


def same(seen: Any, undisturbed: Any) -> bool:
    """Whether each conversation came to the same; conversations do not wait for each other, so only the order within each counts."""

    def by_conversation(sent: list[list[Any]]) -> dict[str, list[list[Any]]]:
        return {name: [each for each in sent if each[0] == name] for name in {each[0] for each in sent}}

    alike = all(seen[name] == undisturbed[name] for name in ("states", "discarded"))
    return alike and by_conversation(seen["sent"]) == by_conversation(undisturbed["sent"])


@pytest.mark.parametrize("point", ["before_effect", "after_effect", "after_word"])
def test_killed_at_each_point_it_comes_to_the_same(tmp_path: Path, undisturbed: Any, point: str) -> None:
    codes: list[int] = []
    while 0 not in codes:
        folder = tmp_path / str(len(codes))
        folder.mkdir()
        codes.append(work_here(folder, f"delivery.dialogs.{point}:{len(codes) + 1}").code)
        assert same(work_here(folder).seen, undisturbed), len(codes)

    assert len(codes) > 6


@pytest.mark.parametrize("number", [1, 2, 3])
def test_killed_again_and_again_it_comes_to_the_same(tmp_path: Path, undisturbed: Any, number: int) -> None:
    """The last try tells everything, what the first ones did, too."""
    codes: list[int] = []
    while 0 not in codes:
        codes.append(work_here(tmp_path, f"delivery.dialogs.after_word:{number}").code)

    assert len(codes) > 2
    assert same(work_here(tmp_path).seen, undisturbed)


def test_killed_for_good_between_effect_and_word(tmp_path: Path, undisturbed: Any) -> None:
    assert work(tmp_path, killed_at="delivery.dialogs.after_effect:3").code == -signal.SIGKILL
    assert same(work(tmp_path).seen, undisturbed)


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_killed_a_dialog_whose_first_message_only_left_is_known_to_the_next_try(tmp_path: Path, isolation: str) -> None:
    """Else the messages behind it would find no endpoint, and be answered with -8462."""
    messages = ["d1:1:postpone", "d2:1:unprocessable", "d3:1:answer first"]
    assert work(tmp_path, messages, "delivery.dialogs.after_word:1", isolation).code == -signal.SIGKILL
    resumed = work(tmp_path, messages, isolation=isolation)
    assert deliveries(tmp_path) == Counter({0: 1, 1: 1, 2: 1})
    assert {name: each["state"] for name, each in resumed.seen["states"].items()} == {"d1": "SI", "d2": "SI", "d3": "CO"}


@pytest.mark.parametrize("isolation", ["process", "none"])
@pytest.mark.parametrize("word", ["worker", "all"])
def test_killed_by_a_handler_nothing_that_it_did_is_seen(tmp_path: Path, word: str, isolation: str) -> None:
    messages = ["d1:1:answer first", f"d1:2:answer no,{word},answer yes", "d1:3:end", "d1:4:answer never"]

    assert work(tmp_path, messages, isolation=isolation).code == -signal.SIGKILL
    resumed = work(tmp_path, messages, isolation=isolation)

    assert [body for _, kind, body, _ in resumed.seen["sent"] if kind == "Answer"] == ["first", "no", "yes"]
    assert resumed.seen["states"]["d1"]["state"] == "DO"
    assert deliveries(tmp_path) == Counter({0: 1, 1: 2, 2: 1})
    assert resumed.told[0][0] is MessageState.COMMITTED
    assert resumed.told[1] == (MessageState.COMMITTED, 1, 1), "charged: it was with its handler"
    assert resumed.seen["discarded"] == 1


def test_a_committed_message_whose_effects_are_lost_is_delivered_again(tmp_path: Path) -> None:
    """A machine was lost: the word had reached the disk, the end of the log had not. What was made of the lost effect is delivered again, too."""
    messages = ["d1:1:answer first", "d2:1:answer other", "d1:2:answer second", "d1:3:answer third"]
    assert work_here(tmp_path, messages=messages).code == 0
    (log,) = (tmp_path / "journal-0").glob("*.log")
    lines = [line for line in log.read_bytes().split(b"\n") if line]
    kept = [line for line in lines if failurelog.effect_of(line) is None or failurelog.effect_of(line).lookup_id != 2]  # type: ignore[union-attr]
    assert len(kept) == len(lines) - 1
    log.write_bytes(b"\n".join([*kept[:-1], kept[-1][: len(kept[-1]) // 2]]))  # the last one is torn besides

    resumed = work_here(tmp_path, messages=messages)

    assert deliveries(tmp_path) == Counter({0: 1, 1: 1, 2: 2, 3: 2})
    assert [(name, body, number) for name, _, body, number in resumed.seen["sent"] if name == "d1"] == [
        ("d1", "first", 1),
        ("d1", "second", 2),
        ("d1", "third", 3),
    ]
    assert [state for state, _, _ in resumed.told] == [MessageState.COMMITTED] * 4


def test_what_was_made_of_a_lost_effect_does_not_count(tmp_path: Path) -> None:
    """Only the effect in the middle is lost; the one behind it was made of its result, so its message, too, is delivered again."""
    messages = ["d1:1:answer first", "d1:2:answer second", "d1:3:answer third,end"]
    assert work_here(tmp_path, messages=messages).code == 0
    (log,) = (tmp_path / "journal-0").glob("*.log")
    lines = [line for line in log.read_bytes().split(b"\n") if line]
    log.write_bytes(b"\n" + b"\n\n".join(line for line in lines if b'"second' not in line and b"c2Vjb25k" not in line) + b"\n")

    resumed = work_here(tmp_path, messages=messages)

    assert deliveries(tmp_path) == Counter({0: 1, 1: 2, 2: 2})
    assert [body for _, kind, body, _ in resumed.seen["sent"] if kind == "Answer"] == ["first", "second", "third"]


def test_a_damaged_effect_counts_for_nothing(tmp_path: Path) -> None:
    messages = ["d1:1:answer first"]
    assert work_here(tmp_path, messages=messages).code == 0
    (log,) = (tmp_path / "journal-0").glob("*.log")
    log.write_bytes(log.read_bytes().replace(b"Zmlyc3Q=", b"bGlhcg=="))  # another body

    resumed = work_here(tmp_path, messages=messages)

    assert [body for _, _, body, _ in resumed.seen["sent"]] == ["first"]
    assert deliveries(tmp_path) == Counter({0: 2})


def test_the_journal_says_committed_only_behind_its_effect(tmp_path: Path) -> None:
    """Killed between the two, the message is not committed, and its line does not count."""
    assert work_here(tmp_path, "delivery.dialogs.after_effect:1", ["d1:1:answer first"]).code == -signal.SIGKILL

    story = read_history([tmp_path / "journal-0"])

    assert [told_.effect.lookup_id for told_ in story.recovered.effects] == [0]
    assert not np.isin(story.recovered.words & 0xFF, (MessageState.COMMITTED, MessageState.CARRIED)).any()
