"""Files that tell what messages and handlers say are for their owner and group: never for others, and as far as the umask allows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from airflow_poison.delivery import printed
from airflow_poison.delivery.journal import Journal
from airflow_poison.delivery.progress import FOLDER, forwarding, handler_log
from airflow_poison.delivery.recovered import RecoveredAttempts
from airflow_poison.passes.submitted import write_whole
from airflow_poison.store import appending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def journal(folder: Path) -> None:
    Journal(folder, "0").close()


def saved_carry(folder: Path) -> None:
    RecoveredAttempts().save(folder / "carry")


def last_output(folder: Path) -> None:
    os.close(printed.create(folder / "0.output"))


def turn_of_a_sender(folder: Path) -> None:
    with appending.turn(str(folder / "_send.lock")) as mine:
        assert mine


def order_of_a_submitted_pass(folder: Path) -> None:
    write_whole(folder / "order.json", {"by_value": "a pickled handler"})


MAKERS = [journal, saved_carry, last_output, turn_of_a_sender, order_of_a_submitted_pass]


@pytest.fixture(params=[(0o000, 0o660), (0o002, 0o660), (0o022, 0o640), (0o077, 0o600)], ids=["umask 000", "002", "022", "077"])
def allowed(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set the umask, and give the mode that files have then."""
    umask, mode = request.param
    before = os.umask(umask)
    yield mode
    os.umask(before)


@pytest.mark.parametrize("make", MAKERS)
def test_others_get_no_right_and_the_group_what_the_umask_leaves_it(make: Callable[[Path], None], allowed: int, tmp_path: Path) -> None:
    make(tmp_path)
    assert {oct(file.stat().st_mode & 0o777) for file in tmp_path.iterdir()} == {oct(allowed)}


def test_a_handlers_output_is_as_private(allowed: int, tmp_path: Path) -> None:
    with forwarding(str(tmp_path / "journal"), "0"):
        handler_log.info("what it prints")
    assert [oct(file.stat().st_mode & 0o777) for file in (tmp_path / FOLDER).iterdir()] == [oct(allowed)]


def test_a_sender_that_may_not_open_the_lock_goes_on_without_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    with appending.turn(str(tmp_path / "_send.lock")) as mine:
        assert not mine
