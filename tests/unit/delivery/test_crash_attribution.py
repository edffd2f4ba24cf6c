"""Who is blamed when everything dies, read from the journals that tries have left: folders are written as tasks leave them."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_poison.delivery import platform
from airflow_poison.delivery.failurelog import FailureLog, Rollback
from airflow_poison.delivery.journal import Journal, MessageState, attempts_of, crashes_of, state_of, word
from airflow_poison.delivery.recovered import Forced, TryNote, read_history, read_partition
from airflow_poison.delivery.returned import Record, RowsWriter
from airflow_poison.values.errors import ServerSessionError
from airflow_poison.values.failures import Failure, FailureKind
from tests.given.examples import examples

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from airflow_poison.delivery.recovered import ClaimHistory

FLYING, DONE, NOTHING = word(MessageState.IN_FLIGHT), word(MessageState.COMMITTED), 0
HELD = word(MessageState.HELD)
ELSEWHERE = TryNote("another machine")


class Tries:
    """The folders of a claim's holders, one after the other."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.journals: list[Path] = []

    def ended(self, *journals: tuple[str, Mapping[int, int]], begun: TryNote | None = None, size: int = 10_000) -> Tries:
        """A try that left these journals: partition, and words by lookup id; sections of at most so many."""
        stage = self.root / str(len(self.journals))
        folder = stage / "journal"
        folder.mkdir(parents=True)
        if begun is not None:
            (stage / "begun").write_text(begun.to_json())
        for partition, words in journals:
            with Journal(folder, partition) as journal:
                for start in range(0, len(words), size):
                    ids = list(words)[start : start + size]
                    journal.append(np.array(ids, np.int64), np.array([words[number] for number in ids], np.int32))
        self.journals.append(folder)
        return self

    def story(self) -> ClaimHistory:
        return read_history(self.journals)


@pytest.fixture
def tries(tmp_path: Path) -> Tries:
    return Tries(tmp_path)


def counts(story: ClaimHistory, *ids: int) -> list[tuple[int, int]]:
    """Attempts and crashes of messages."""
    return [(attempts_of(story.recovered.word_of(number)), crashes_of(story.recovered.word_of(number))) for number in ids]


def states(story: ClaimHistory, *ids: int) -> list[MessageState]:
    return [state_of(story.recovered.word_of(number)) for number in ids]


def try_with_rows(tries: Tries, words: Mapping[int, int], records: Sequence[tuple[int, int, bytes]]) -> None:
    """A try whose committed messages have records of what they returned: lookup id, attempts before it, rows."""
    folder = tries.root / str(len(tries.journals)) / "journal"
    folder.mkdir(parents=True)
    with Journal(folder, "0", keeps_rows=True) as journal:
        RowsWriter(journal.rows_descriptor).append([Record((number,), (before,), rows) for number, before, rows in records])
        journal.append(np.array(list(words), np.int64), np.array(list(words.values()), np.int32))
    tries.journals.append(folder)


def test_a_message_that_an_earlier_try_has_committed_is_delivered_again_when_what_it_returned_is_lost(tries: Tries) -> None:
    """The words of a later try, which were on disk when the power failed, outlive the record of the earlier one, which was not."""
    carried = word(MessageState.CARRIED, 1)
    try_with_rows(tries, {1: DONE, 2: word(MessageState.COMMITTED, 1), 3: DONE}, [(1, 0, b"one")])
    try_with_rows(tries, {1: word(MessageState.CARRIED), 2: carried, 3: word(MessageState.CARRIED), 4: DONE}, [(4, 0, b"four")])

    story = tries.story()

    assert states(story, 1, 4) == [MessageState.CARRIED] * 2
    assert states(story, 2, 3) == [MessageState.UNTOUCHED] * 2
    assert counts(story, 2, 3) == [(1, 0), (0, 0)]
    assert sorted(returned.rows for _, returned in story.recovered.returned.read(np.array([1, 2, 3, 4]))) == [b"four", b"one"]


def test_a_message_that_was_committed_when_nothing_was_kept_of_what_it_returned_stays_so(tries: Tries) -> None:
    """An output that is declared for a later try of the claim has nothing of it, and it is not delivered again."""
    tries.ended(("0", {1: DONE, 2: NOTHING}))
    try_with_rows(tries, {1: word(MessageState.CARRIED), 2: DONE}, [(2, 0, b"two")])

    assert states(tries.story(), 1, 2) == [MessageState.CARRIED] * 2


# On one machine -------------------------------------------------------------------------------------------------------


def test_the_only_message_in_flight_is_charged_and_delivered_alone_while_it_has_attempts_left(tries: Tries) -> None:
    story = tries.ended(("0", {1: DONE, 2: FLYING, 3: NOTHING}), ("1", {4: DONE})).story()

    assert counts(story, 1, 2, 3, 4) == [(0, 0), (1, 1), (0, 0), (0, 0)]
    assert story.recovered.failures[2].type == "killed"
    assert story.alone == (2,)


def test_of_several_in_flight_nobody_is_charged_and_each_is_suspected(tries: Tries) -> None:
    story = tries.ended(("0", {1: DONE, 2: word(MessageState.IN_FLIGHT, 1)}), ("1", {4: FLYING})).story()

    assert counts(story, 1, 2, 4) == [(0, 0), (1, 0), (0, 0)]
    assert states(story, 2, 4) == [MessageState.UNTOUCHED] * 2
    assert story.alone == (2, 4)
    assert not story.careful


def test_a_suspect_that_kills_alone_is_charged_with_the_earlier_deaths_too(tries: Tries) -> None:
    tries.ended(("0", {1: FLYING}), ("1", {4: FLYING}), ("2", {7: FLYING}))
    tries.ended(("alone", {1: DONE, 4: FLYING, 7: NOTHING}), size=1)

    story = tries.story()

    assert counts(story, 4, 7) == [(2, 2), (0, 0)]
    assert states(story, 1) == [MessageState.CARRIED]
    assert story.alone == (4, 7), "one has not been delivered again yet"


def test_two_that_kill_everything_are_each_charged_with_every_death_at_which_they_were_in_flight(tries: Tries) -> None:
    tries.ended(("0", {1: FLYING}), ("1", {4: FLYING}))
    tries.ended(("alone", {1: FLYING, 4: NOTHING}), size=1)
    tries.ended(("alone", {1: word(MessageState.ENDED, 2, 2), 4: FLYING}), size=1)

    story = tries.story()

    assert counts(story, 1, 4) == [(2, 2), (2, 2)]
    assert story.alone == (4,)


@pytest.mark.parametrize("end", [DONE, word(MessageState.ENDED, 1), word(MessageState.UNTOUCHED, 1)], ids=["commits", "ends", "fails and waits"])
def test_a_suspect_of_which_something_has_become_is_none_any_more_and_was_never_charged(tries: Tries, end: int) -> None:
    tries.ended(("0", {1: FLYING}), ("1", {4: FLYING}))
    tries.ended(("alone", {1: end, 4: FLYING}), size=1)

    story = tries.story()

    assert crashes_of(story.recovered.word_of(1)) == 0
    assert story.alone == (4,)


def test_a_suspect_that_fails_and_kills_in_the_same_try_is_charged_with_both_deaths(tries: Tries) -> None:
    tries.ended(("0", {1: FLYING}), ("1", {4: FLYING}))
    tries.ended(("alone", {1: word(MessageState.IN_FLIGHT, 1), 4: NOTHING}), size=1)

    assert counts(tries.story(), 1) == [(3, 2)]


def test_wcf_41_one_open_batch_counts_for_each_member_and_of_two_only_those_in_flight_are_suspects(tries: Tries) -> None:
    one = tries.ended(("0", {1: DONE, 2: HELD, 3: FLYING, 4: NOTHING})).story()
    assert counts(one, 2, 3, 4) == [(1, 0), (1, 1), (0, 0)]
    assert one.alone == (3,)

    two = Tries(tries.root / "two").ended(("0", {2: HELD, 3: FLYING}), ("1", {5: HELD, 6: HELD})).story()
    assert counts(two, 2, 3, 5, 6) == [(0, 0)] * 4
    assert two.alone == (3,)


def test_a_batch_that_had_been_committed_stays_so_beside_open_ones(tries: Tries) -> None:
    story = tries.ended(("0", {1: HELD, 2: DONE}), ("1", {5: FLYING}), ("2", {6: FLYING})).story()

    assert states(story, 1) == [MessageState.CARRIED]
    assert story.alone == (5, 6)


def test_what_a_later_attempt_of_the_task_has_counted_is_not_open_any_more(tries: Tries) -> None:
    """Spark has run the task again: its second attempt charged the first one's message and went on."""
    tries.ended(("0", {1: DONE, 2: FLYING, 3: NOTHING}), ("0", {1: word(MessageState.CARRIED), 2: word(MessageState.COMMITTED, 1, 1), 3: FLYING}))

    story = tries.story()

    assert counts(story, 2, 3) == [(1, 1), (1, 1)]
    assert story.alone == (3,)


def test_timeouts_of_all_tries_are_told_each_once(tries: Tries) -> None:
    late = Failure(FailureKind.TIMEOUT, "transaction timeout")
    for _ in range(2):
        tries.ended(("0", {1: word(MessageState.TIMED_OUT, 1, 1)}))
        (journal,) = tries.journals[-1].glob("*.log")
        with journal.open("ab") as file:
            log = FailureLog(file.fileno())
            log.append(Rollback(0, 0, 1, len(tries.journals), late))
            log.append(Rollback(0, 0, 1, len(tries.journals), late))  # its word was not stored: it was charged again
            log.append(Rollback(0, 1, 2, 0, late, innocent=True))
            log.append(Rollback(0, 2, 3, 0, Failure(FailureKind.CRASH)))

    assert tries.story().recovered.timeouts == 2


# A task that Spark runs again -----------------------------------------------------------------------------------------


def test_a_task_that_runs_again_charges_the_only_message_that_was_in_flight(tries: Tries) -> None:
    tries.ended(("0", {1: FLYING}), ("1", {4: DONE}))

    assert read_partition(tries.journals[0], "0").word_of(1) == word(MessageState.UNTOUCHED, 1, 1)


@pytest.mark.parametrize("words", [[("0", {1: FLYING}), ("1", {4: FLYING})], [("0", {1: FLYING, 2: FLYING})]], ids=["two tasks", "two sessions"])
def test_a_task_that_runs_again_does_not_guess(tries: Tries, words: Sequence[tuple[str, Mapping[int, int]]]) -> None:
    tries.ended(*words)

    with pytest.raises(ServerSessionError, match="no message is charged: run the Airflow task again"):
        read_partition(tries.journals[0], "0")


def test_a_task_that_runs_again_beside_a_living_one_charges_its_own_message(tries: Tries) -> None:
    tries.ended(("0", {1: FLYING}))
    with Journal(tries.journals[0], "1") as living:
        living.append(np.array([4], np.int64), np.array([FLYING], np.int32))

        assert read_partition(tries.journals[0], "0").word_of(1) == word(MessageState.UNTOUCHED, 1, 1)


# A machine is lost ----------------------------------------------------------------------------------------------------


def test_the_first_try_that_vanished_with_its_machine_means_nothing_and_the_second_one_care(tries: Tries) -> None:
    first = tries.ended(begun=ELSEWHERE).story()
    assert (first.alone, first.careful) == ((), False)

    second = tries.ended(begun=ELSEWHERE).story()
    assert (second.alone, second.careful) == ((), True)


def test_a_try_on_this_machine_has_lost_nothing(tries: Tries) -> None:
    here = TryNote(platform.machine())
    story = tries.ended(begun=here).ended(begun=here).ended(("0", {1: FLYING}), begun=here).story()

    assert counts(story, 1) == [(1, 1)]
    assert not story.careful


def test_marks_from_a_lost_machine_may_be_old_so_even_a_single_one_is_only_suspected(tries: Tries) -> None:
    story = tries.ended(("0", {1: DONE, 2: FLYING, 3: NOTHING}), begun=ELSEWHERE).story()

    assert counts(story, 2) == [(0, 0)]
    assert (story.alone, story.outdated) == ((2,), True)
    assert states(story, 1) == [MessageState.CARRIED], "what has happened has happened"


def test_a_death_for_which_a_suspect_was_charged_later_is_explained(tries: Tries) -> None:
    """Killed twice on machines that live on and share the files: nothing to be careful about, the journals tell."""
    tries.ended(("0", {1: FLYING}), ("1", {2: FLYING}), begun=ELSEWHERE)
    tries.ended(("alone", {1: DONE, 2: FLYING}), begun=ELSEWHERE, size=1)
    tries.ended(("alone", {2: word(MessageState.ENDED, 2, 2)}), ("0", {3: FLYING}), begun=ELSEWHERE)

    story = tries.story()

    assert counts(story, 1, 2, 3) == [(0, 0), (2, 2), (0, 0)]
    assert (story.alone, story.careful) == ((3,), False)


def test_of_the_last_section_that_was_forced_to_disk_everybody_unsettled_is_suspected(tries: Tries) -> None:
    tries.ended(begun=ELSEWHERE).ended(begun=ELSEWHERE)
    words = dict.fromkeys(range(1, 65), DONE) | dict.fromkeys(range(65, 129), NOTHING)
    tries.ended(("0", words | {65: word(MessageState.ENDED, 1), 66: FLYING}), begun=TryNote("a third machine", Forced.SECTIONS), size=64)

    story = tries.story()

    assert story.alone == tuple(range(66, 129))
    assert counts(story, 66, 67) == [(0, 0)] * 2, "the mark may be old"
    assert story.careful


def test_a_section_of_one_message_names_the_culprit(tries: Tries) -> None:
    forced = TryNote("a third machine", Forced.SECTIONS)
    tries.ended(begun=ELSEWHERE).ended(begun=ELSEWHERE)
    tries.ended(("0", dict.fromkeys(range(1, 65), NOTHING)), begun=forced)
    tries.ended(("alone", {1: DONE, 2: DONE, 3: NOTHING}), begun=forced, size=1)

    story = tries.story()

    assert counts(story, 1, 2, 3, 4) == [(0, 0), (0, 0), (2, 2), (0, 0)]
    assert story.alone == tuple(range(3, 65))


def test_of_a_lost_node_the_last_section_of_each_task_that_others_were_told_of_is_suspected_and_nobody_needs_more_care(tries: Tries) -> None:
    lost = TryNote("another machine", Forced.SHARED, "its folder")
    story = tries.ended(("0", {1: DONE, 2: DONE, 3: DONE, 4: NOTHING}), ("1", {5: NOTHING, 6: NOTHING}), begun=lost, size=2).story()

    assert story.alone == (4, 5, 6)
    assert counts(story, 3, 4, 5, 6) == [(0, 0)] * 4
    assert states(story, 1, 2, 3) == [MessageState.CARRIED] * 3
    assert not story.careful


def test_of_a_lost_node_the_only_message_that_others_were_told_of_is_charged_with_every_loss(tries: Tries) -> None:
    lost = TryNote(platform.machine(), Forced.SHARED, "a folder of another container")
    tries.ended(("0", {1: NOTHING, 2: NOTHING}), begun=lost)
    tries.ended(("0", {1: DONE, 2: NOTHING}), begun=lost, size=1)

    story = tries.story()

    assert counts(story, 1, 2) == [(0, 0), (2, 2)]


def test_of_a_lost_node_a_loss_that_one_message_was_charged_with_is_nobody_elses(tries: Tries) -> None:
    """The second one may never have been called when the first one took the node with it."""
    lost = TryNote("another machine", Forced.SHARED, "its folder")
    tries.ended(("0", {1: NOTHING, 2: NOTHING, 3: NOTHING}), begun=lost)
    tries.ended(("0", {1: NOTHING}), begun=lost)
    assert counts(tries.story(), 1, 2) == [(2, 2), (0, 0)]
    tries.ended(("0", {1: word(MessageState.ENDED, 2, 2), 2: NOTHING}), begun=lost, size=1)

    story = tries.story()

    assert counts(story, 1, 2, 3) == [(2, 2), (1, 1), (0, 0)]
    assert story.alone == (2, 3)


def test_in_a_folder_of_this_node_marks_are_true_whoever_was_told(tries: Tries) -> None:
    tries.ended(("0", {1: DONE, 2: FLYING, 3: NOTHING}), begun=TryNote(platform.machine(), Forced.SHARED, "here"))

    assert counts(read_history(tries.journals, node="here"), 1, 2, 3) == [(0, 0), (1, 1), (0, 0)]


def test_where_each_mark_was_forced_to_disk_marks_are_true(tries: Tries) -> None:
    tries.ended(("0", {1: DONE, 2: FLYING, 3: NOTHING}), begun=TryNote("a third machine", Forced.MARKS))

    story = tries.story()

    assert counts(story, 2, 3) == [(1, 1), (0, 0)]
    assert story.careful


def test_a_try_that_had_delivered_its_suspects_and_then_vanished_is_not_explained(tries: Tries) -> None:
    tries.ended(("0", {1: FLYING}), begun=ELSEWHERE)
    assert not tries.ended(("alone", {1: NOTHING}), begun=ELSEWHERE).story().careful, "it died of the suspect"
    assert counts(tries.story(), 1) == [(2, 2)]
    tries.ended(("alone", {1: word(MessageState.ENDED, 2, 2)}), begun=ELSEWHERE)
    assert not tries.story().careful

    assert tries.ended(("alone", {1: word(MessageState.ENDED, 2, 2)}), begun=ELSEWHERE).story().careful


@pytest.mark.parametrize("text", ["", "{", "[]", '{"machine": "x"}', '{"machine": "x", "forced": "?"}'])
def test_a_note_that_was_not_finished_is_none(tries: Tries, text: str) -> None:
    tries.ended(begun=ELSEWHERE)
    (tries.root / "0" / "begun").write_text(text)

    assert not tries.ended(begun=ELSEWHERE).story().careful


# Any history ----------------------------------------------------------------------------------------------------------

ATTEMPTS, IDS = 2, range(1, 9)


@dataclass
class World:
    """Messages, some of which kill everything whenever they are delivered; tries follow each other until one ends well.

    :param begun: the note of each try; None: of a version that wrote none.
    """

    tries: Tries
    culprits: frozenset[int]
    chance: random.Random
    begun: TryNote | None
    delivered: Counter[int] = field(default_factory=Counter)
    stories: list[ClaimHistory] = field(default_factory=list)

    def live(self) -> None:
        while not self._try(self.tries.story()):
            assert len(self.stories) <= ATTEMPTS * len(self.culprits) + 1

    def _try(self, story: ClaimHistory) -> bool:
        """Return whether it ended well."""
        self.stories.append(story)
        self.tries.ended(begun=self.begun)
        alone = {number: self._begins_with(story, number) for number in story.alone}
        with Journal(self.tries.journals[-1], "alone") as journal:
            for number in story.alone:
                section = journal.append(np.array([number], np.int64), np.array([alone[number]], np.int32))
                section.words[0] = alone[number] = self._delivered(number, alone[number])
                if alone[number] & 0xFF == MessageState.IN_FLIGHT:
                    return False
        return self._side_by_side({number: alone.get(number, self._begins_with(story, number)) for number in IDS})

    def _side_by_side(self, words: dict[int, int]) -> bool:
        """Two tasks, each its half; at a death the other one may have a message in its hands."""
        halves = [[number for number in IDS if number % 2 == half and state_of(words[number]) is MessageState.UNTOUCHED] for half in range(2)]
        dead = False
        while not dead and any(halves):
            first, other = self.chance.sample([half for half in halves if half] or [[]], 1)[0], self.chance.random() < 0.7
            number = first.pop(0)
            words[number] = self._delivered(number, words[number])
            if words[number] & 0xFF == MessageState.IN_FLIGHT:
                dead = True
                beside = next((half for half in halves if half is not first), [])
                if other and beside:
                    words[beside[0]] = words[beside[0]] & ~0xFF | MessageState.IN_FLIGHT
                    self.delivered[beside[0]] += 1
        for half in range(2):
            members = [number for number in IDS if number % 2 == half]
            with Journal(self.tries.journals[-1], str(half)) as journal:
                journal.append(np.array(members, np.int64), np.array([words[number] for number in members], np.int32))
        return not dead

    def _begins_with(self, story: ClaimHistory, number: int) -> int:
        return story.recovered.word_of(number)

    def _delivered(self, number: int, value: int) -> int:
        if state_of(value) is not MessageState.UNTOUCHED:
            return value
        if attempts_of(value) >= ATTEMPTS:
            return value & ~0xFF | MessageState.ENDED
        self.delivered[number] += 1
        return value & ~0xFF | (MessageState.IN_FLIGHT if number in self.culprits else MessageState.COMMITTED)


@settings(max_examples=examples(60))
@given(
    st.frozensets(st.sampled_from(IDS), max_size=4),
    st.randoms(use_true_random=False),
    st.sampled_from([None, TryNote(platform.machine()), ELSEWHERE]),
)
def test_in_any_history_each_culprit_is_charged_with_each_of_its_deliveries_and_nobody_else_with_any(
    culprits: frozenset[int], chance: random.Random, begun: TryNote | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Tries(Path(folder)), culprits, chance, begun)
        world.live()
        last = world.tries.story()

        assert {number: crashes_of(last.recovered.word_of(number)) for number in IDS} == {number: ATTEMPTS * (number in culprits) for number in IDS}
        assert {number: world.delivered[number] for number in culprits} == dict.fromkeys(culprits, ATTEMPTS)
        assert {number for number in IDS if state_of(last.recovered.word_of(number)) is MessageState.CARRIED} == set(IDS) - culprits
        assert (last.alone, last.careful) == ((), False)
        for number, story in enumerate(world.stories):
            again = read_history(world.tries.journals[:number])
            assert again.recovered.words.tolist() == story.recovered.words.tolist(), "a later holder comes to the same words"
            assert (again.alone, again.careful) == (story.alone, story.careful)
            for following in world.stories[number:]:
                assert all(attempts_of(following.recovered.word_of(each)) >= attempts_of(story.recovered.word_of(each)) for each in IDS), (
                    "counts never fall"
                )
