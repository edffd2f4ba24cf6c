"""The right message is blamed: ten thousand messages, eight of which kill their process, or the processes above it, whenever they are delivered."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest

from tests.spark.culprits import Dangerous

pytestmark = pytest.mark.campaign

MESSAGES = 10_000
ATTEMPTS = 2


class Blame(NamedTuple):
    """What a culprit's row says."""

    deed: str
    kind: str
    type: str
    above: bool = False


CULPRITS = {
    3_000: Blame("exit", "crash", "exit code 7"),
    3_001: Blame("kill", "crash", "signal SIGKILL"),
    3_500: Blame("segfault", "crash", "signal SIGSEGV"),
    4_000: Blame("memory", "crash", "signal SIGABRT"),
    4_500: Blame("hang", "timeout", "transaction timeout"),
    4_800: Blame("worker", "crash", "killed", above=True),
    4_990: Blame("task", "crash", "killed", above=True),
    5_010: Blame("jvm", "crash", "killed", above=True),  # the other half of the queue: it strikes while the first half is being received
}
ABOVE = ATTEMPTS * sum(blame.above for blame in CULPRITS.values())
Received = tuple[Dangerous, dict[str, object], list[dict[str, object]]]


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> Received:
    bodies = [CULPRITS[number].deed if number in CULPRITS else "good" for number in range(1, MESSAGES + 1)]
    work = Dangerous(str(tmp_path_factory.mktemp("right") / "store"))
    work.sent(bodies)
    return work, *work.receive("the task instance")


def test_what_kills_more_than_its_own_process_costs_a_run_and_the_others_cost_none(received: Received) -> None:
    _, _, failed = received
    ends = Counter(str(end.get("error", end["status"])) for end in failed)
    assert ends == {"SparkJobError": 2 * ATTEMPTS, "-9": ATTEMPTS}


def test_the_culprits_alone_are_in_poison_each_with_what_it_did(received: Received) -> None:
    work, _, _ = received
    rows = work.rows()
    assert sorted(rows) == sorted(CULPRITS)
    errors = {number: row["last_error"] for number, row in rows.items()}
    assert {number: (error["kind"], error["type"]) for number, error in errors.items()} == {  # type: ignore[index]  # a struct
        number: (blame.kind, blame.type) for number, blame in CULPRITS.items()
    }
    assert {(row["abort_count"], row["move_count"], row["sub_queue"]) for row in rows.values()} == {(0, 1, "poison")}
    assert work.table().snapshot().claims == ()


def test_a_crash_has_its_standard_error_whoever_dies_with_it(received: Received) -> None:
    work, _, _ = received
    for number, row in work.rows().items():
        blame, trace = CULPRITS[number], row["last_error"]["trace"]  # type: ignore[index]  # a struct
        assert trace.startswith(f"{blame.deed}: the last words of message {number}\n")
        assert ("Fatal Python error" in trace) == (blame.deed in {"segfault", "memory"}), "whose signals Python tells of"


def test_every_innocent_message_is_settled_and_repeated_only_where_another_process_was_killed(received: Received) -> None:
    work, _, _ = received
    calls, done = work.calls(), work.calls("done")
    innocents = set(range(1, MESSAGES + 1)) - set(CULPRITS)
    repeated = {number: calls[number] for number in innocents if calls[number] != 1}
    assert set(done) == innocents
    assert {number: calls[number] for number in CULPRITS} == dict.fromkeys(CULPRITS, ATTEMPTS)
    assert len(repeated) <= ABOVE, repeated
    assert sum(repeated.values()) - len(repeated) <= ABOVE, "at most one for each death of all processes: the other task's"


def test_the_numbers_of_the_run_are_those_of_all_its_tries(received: Received) -> None:
    _, said, _ = received
    numbers = {name: int(str(value)) for name, value in said.items()}
    assert (numbers["received"], numbers["settled"], numbers["poisoned"]) == (MESSAGES, MESSAGES - len(CULPRITS), len(CULPRITS))
    assert numbers["rollbacks"] == numbers["crashes"] == ATTEMPTS * len(CULPRITS), "no innocent was charged, ever"
    assert numbers["timeouts"] == ATTEMPTS * sum(blame.kind == "timeout" for blame in CULPRITS.values())


def test_each_culprit_was_charged_with_each_of_its_deliveries(received: Received) -> None:
    work, _, _ = received
    assert {number: row["crash_count"] for number, row in work.rows().items()} == dict.fromkeys(CULPRITS, ATTEMPTS)
