"""Words: ages, sizes, names, and texts that steer no terminal."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_poison.cli import terminal
from airflow_poison.values.schema import SubQueue
from tests.unit.cli.queues.given import MOVE, TAKE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.given.command import Ran


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(-5, "0 s"), (0.4, "0 s"), (59.6, "1 min"), (61, "1 min 1 s"), (3_600, "1 h"), (3_661, "1 h 1 min"), (90_061, "1 d 1 h"), (86_460, "1 d")],
)
def test_an_age_has_its_two_largest_units(seconds: float, told: str) -> None:
    assert terminal.about(timedelta(seconds=seconds)) == told


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 bytes"), (1, "1 byte"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (64 << 20, "64.0 MiB"), (5 << 40, "5.0 TiB")]
)
def test_a_size_is_read_at_once(count: int, told: str) -> None:
    assert terminal.size(count) == told


def test_what_messages_say_steers_no_terminal(poison: Callable[..., Ran], here: Path) -> None:
    assert terminal.one_line("a\x1b[2J\tb\r\n") == r"a\x1b[2J\tb"
    (here / "in").write_bytes(b"bad \x1b[2Jred\x07\tend")
    poison(f"send orders --file in {MOVE} --group 'g\x1b[1m'")
    poison(f"receive orders {TAKE}")
    for line in ("show orders", "show orders --lookup-id 1", "show orders --body", "inspect orders --lookup-id 1", "history orders"):
        ran = poison(line)
        assert not {"\x1b", "\x07"} & set(ran.out), line


def test_every_sub_queue_can_be_named() -> None:
    from airflow_poison.cli.command import PLACES

    assert tuple(SubQueue) == PLACES
