"""What a pass tells while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from airflow_poison.delivery.journal import Journal, MessageState, word
from airflow_poison.passes.delivering import PassProgress

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Watch:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def words(tmp_path: Path) -> Iterator[memoryview]:
    (tmp_path / "journal").mkdir()
    with Journal(tmp_path / "journal", "0") as journal:
        yield journal.append(np.arange(1000, dtype=np.int64), np.zeros(1000, np.int32)).words


@pytest.fixture
def telling(tmp_path: Path, words: memoryview, lines: list[str], watch: Watch) -> PassProgress:
    return PassProgress(str(tmp_path / "journal"), "orders", 1000, lines.append, watch)


def settle(words: memoryview, first: int, last: int) -> None:
    for row in range(first, last):
        words[row] = word(MessageState.COMMITTED)


def test_a_short_pass_tells_nothing(telling: PassProgress, words: memoryview, lines: list[str], watch: Watch) -> None:
    settle(words, 0, 1000)
    watch.now += 9.9
    telling.beat()
    assert lines == []


def test_a_long_pass_tells_every_ten_seconds_how_far_it_is(telling: PassProgress, words: memoryview, lines: list[str], watch: Watch) -> None:
    settle(words, 0, 430)
    words[430], words[431] = word(MessageState.ENDED, 3), word(MessageState.CRASHED, 1, 1)
    watch.now += 10
    for _ in range(5):
        telling.beat()
        watch.now += 1
    assert lines == ["queue orders: 431 of 1,000 messages (43 %) after 10 s: 430 settled, 1 rolled back for good, 4 rollbacks"]
    settle(words, 432, 532)
    watch.now += 5
    telling.beat()
    assert [line.split("(")[1][:4] for line in lines] == ["43 %", "53 %"]


def test_a_pass_that_stands_still_tells_every_minute(telling: PassProgress, lines: list[str], watch: Watch) -> None:
    for _ in range(130):
        watch.now += 1
        telling.beat()
    assert [line.partition(" after ")[2][:5].rstrip(":") for line in lines] == ["60 s", "120 s"]


def test_a_claim_is_kept_before_anything_is_told(telling: PassProgress, lines: list[str], watch: Watch) -> None:
    watch.now += 1000

    def lost() -> None:
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        telling.beating(lost)()
    assert lines == []
