"""Failures that the application counts itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules.queue_disabling import EndConversation, FailureTracking, Tracked
from airflow_poison.values.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

TRACKING = FailureTracking()
ENDED = EndConversation(500, "Unable to process message.")


def failures(times: int, conversation: str = "d1") -> list[Tracked]:
    """Let a conversation fail so often, each time with the counts that were left."""
    counts: Mapping[str, int] = {}
    told = []
    for _ in range(times):
        told.append(TRACKING.failed(counts, conversation))
        counts = told[-1].counts
    return told


def test_sb_59_e10_the_fourth_failure_clears_the_count_and_ends_the_conversation() -> None:
    assert failures(4) == [Tracked({"d1": 1}), Tracked({"d1": 2}), Tracked({"d1": 3}), Tracked({}, ENDED)]


def test_sb_59_e10_success_clears_the_count() -> None:
    counts = failures(2)[-1].counts

    assert TRACKING.succeeded(counts, "d1") == Tracked({})
    assert TRACKING.failed(TRACKING.succeeded(counts, "d1").counts, "d1") == Tracked({"d1": 1})


def test_sb_59_e10_an_error_or_end_dialog_clears_the_count_and_ends_the_conversation_without_an_error() -> None:
    assert TRACKING.partner_ended(failures(3)[-1].counts, "d1") == Tracked({}, EndConversation())
    assert TRACKING.partner_ended({}, "d1") == Tracked({}, EndConversation())


def test_sb_59_each_conversation_has_a_count_of_its_own() -> None:
    counts = {"d1": 3, "d2": 3}

    assert TRACKING.failed(counts, "d1") == Tracked({"d2": 3}, ENDED)
    assert TRACKING.succeeded(counts, "d3") == Tracked(counts)
    assert counts == {"d1": 3, "d2": 3}


@given(st.integers(0, 20))
def test_sb_59_a_conversation_ends_when_its_count_exceeds_the_limit(max_failures: int) -> None:
    tracking = FailureTracking(max_failures)

    assert tracking.failed({"d1": max_failures}, "d1").end == ENDED
    if max_failures:
        assert tracking.failed({"d1": max_failures - 1}, "d1") == Tracked({"d1": max_failures})


@pytest.mark.parametrize("wrong", [-1, 1.5, "3", True, 2147483648])
def test_sb_59_a_limit_that_is_none_is_refused(wrong: int) -> None:
    with pytest.raises(SettingError, match="max_failures"):
        FailureTracking(wrong)
