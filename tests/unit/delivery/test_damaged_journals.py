"""Damaged journals: what can be read counts, the rest is unknown, and no message is charged for what is not there."""

from __future__ import annotations

import json
import logging
import os
import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from airflow_poison.delivery.failurelog import FailureLog, FailureReader, Rollback
from airflow_poison.delivery.journal import SECTOR, STATE_MASK, Journal, MessageState, attempts_of, read, sections, word
from airflow_poison.delivery.recovered import read_journals
from airflow_poison.values.errors import ServerSessionError
from airflow_poison.values.failures import Failure, FailureKind
from tests.given import children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECTIONS, ROWS = 3, 200
STATES = [
    word(MessageState.COMMITTED),
    word(MessageState.ENDED, 2),
    word(MessageState.UNTOUCHED, 1),
    word(MessageState.CRASHED, 3, 1),
    word(MessageState.CARRIED),
]


def written(folder: Path) -> bytes:
    """A journal of three batches, the last of which has a transaction open when its process dies."""
    with Journal(folder, "0") as journal:
        for number in range(SECTIONS):
            first = 1 + number * ROWS
            section = journal.append(np.arange(first, first + ROWS, dtype=np.int64), np.zeros(ROWS, np.int32))
            section.as_array()[:] = [STATES[row % len(STATES)] for row in range(ROWS)]
        section.as_array()[100:] = 0
        section.as_array()[100:104] = [word(MessageState.HELD, 1)] * 3 + [word(MessageState.IN_FLIGHT)]
        return journal.path.read_bytes()


def known(content: bytes) -> dict[int, int]:
    """What is read, by lookup id; unknown ones are left out."""
    return {int(number): int(value) for ids, words, _ in sections(content) for number, value in zip(ids, words, strict=True) if value}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return written(tmp_path_factory.mktemp("journal"))


@pytest.fixture(scope="module")
def true(content: bytes) -> dict[int, int]:
    return known(content)


def assert_nothing_made_up(true: dict[int, int], found: dict[int, int]) -> None:
    """Every word that is read is the true one; a held one may have become one that only keeps its count."""
    for number, value in found.items():
        held = true.get(number, 0) & STATE_MASK == MessageState.HELD
        assert value in ({true[number], word(MessageState.UNTOUCHED, attempts_of(true[number]))} if held else {true[number]})


def test_whole_it_says_everything(content: bytes) -> None:
    assert read(content).damage == ()
    assert len(known(content)) == SECTIONS * ROWS - 96


def test_cut_at_any_byte_what_is_left_counts(content: bytes, true: dict[int, int]) -> None:
    size = SECTIONS * (16 + 12 * ROWS)
    halves = set()
    for end in range(size):
        found = known(content[:end])
        assert_nothing_made_up(true, found)
        assert read(content[:end]).damage or not end
        halves.add(len(found))
    assert {0, 1, ROWS, 2 * ROWS + 100} <= halves


@pytest.mark.parametrize("fill", [pytest.param(bytes, id="zeros"), pytest.param(random.Random(1).randbytes, id="anything")])
def test_a_sector_that_is_lost_takes_only_itself_or_its_section(content: bytes, true: dict[int, int], fill: Callable[[int], bytes]) -> None:
    for start in range(0, SECTIONS * (16 + 12 * ROWS), SECTOR):
        damaged = content[:start] + fill(SECTOR) + content[start + SECTOR :]
        assert_nothing_made_up(true, known(damaged))
        assert len(known(damaged)) >= len(true) - ROWS - SECTOR // 4


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_a_garbled_header_or_id_is_noticed_and_the_sections_behind_it_are_found(content: bytes, true: dict[int, int], size: int) -> None:
    for at in range(0, 16 + 8 * ROWS - size, 3):
        damaged = content[:at] + bytes(255 - byte for byte in content[at : at + size]) + content[at + size :]
        assert min(known(damaged)) == ROWS + 1
        assert_nothing_made_up(true, known(damaged))
        assert any("cannot be read" in what for what in read(damaged).damage)


def test_words_that_cannot_be_are_unknown_with_their_sector(content: bytes, true: dict[int, int]) -> None:
    start = 16 + 8 * ROWS
    for row in range(0, ROWS, 7):
        for never in (b"\xff\xff\xff\xff", (3 << 20 | 2 << 8).to_bytes(4, "little"), (77).to_bytes(4, "little")):
            at = start + 4 * row
            damaged = content[:at] + never + content[at + 4 :]
            assert row + 1 not in known(damaged)
            assert_nothing_made_up(true, known(damaged))
            assert "words of the section at byte 0 cannot be read" in read(damaged).damage[0]


def test_an_open_transaction_whose_end_is_lost_charges_nobody(tmp_path: Path) -> None:
    """Held words are committed exactly when the word behind them is; here that one lies in the next sector, and that is lost."""
    last = (SECTOR - 16 - 8 * ROWS % SECTOR) % SECTOR // 4 - 1
    with Journal(tmp_path, "0") as journal:
        section = journal.append(np.arange(1, 1 + ROWS, dtype=np.int64), np.zeros(ROWS, np.int32))
        section.as_array()[last - 2 : last + 1] = word(MessageState.HELD, 1)
        section.as_array()[last + 1] = word(MessageState.COMMITTED)
        content, path = journal.path.read_bytes(), journal.path
    lost = 16 + 8 * ROWS + 4 * (last + 1)
    assert lost % SECTOR == 0
    path.write_bytes(content[:lost] + b"\xff" * SECTOR + content[lost + SECTOR :])
    recovered = read_journals([tmp_path])
    assert recovered.words_for(np.arange(last - 1, last + 3, dtype=np.int64)).tolist() == [word(MessageState.UNTOUCHED, 1)] * 3 + [0]


def test_a_header_of_billions_of_messages_takes_no_memory(content: bytes) -> None:
    damaged = (int.from_bytes(content[:8], "little") | 0xFFFFFFFF).to_bytes(8, "little") + content[8:]
    assert min(known(damaged)) == ROWS + 1


# Beside it ------------------------------------------------------------------------------------------------------------


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [pytest.param(folder, id="a folder"), pytest.param(lambda path: path.write_bytes(b""), id="empty")])
def test_what_is_no_journal_says_nothing(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    written(tmp_path)
    damage(next(tmp_path.glob("*.journal")))
    assert len(read_journals([tmp_path]).lookup_ids) == 0


@pytest.mark.parametrize("damage", [pytest.param(folder, id="a folder"), pytest.param(lambda path: path.unlink(), id="gone")])
def test_without_its_log_a_journal_counts(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    written(tmp_path)
    damage(next(tmp_path.glob("*.log")))
    assert len(read_journals([tmp_path]).lookup_ids) == SECTIONS * ROWS


def test_damage_is_told_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path)
    os.truncate(next(tmp_path.glob("*.journal")), 3_000)
    with caplog.at_level(logging.WARNING):
        read_journals([tmp_path])
    assert "3000 bytes, which is no multiple of 65536: it was cut short" in caplog.text
    assert "delivered again" in caplog.text


LINES = [
    b"7",
    b"null",
    b"[]",
    b"{}",
    b'{"at":3}',
    b'{"at":[0,0,1,0]}',
    b'{"halt":[],"details":{}}',
    b'{"halt":7,"details":[1]}',
    b'{"halt":99999999999999999999,"details":{}}',
    b'{"at":[0,0,99999999999999999999,0,0],"kind":"crash","type":"a","text":"b","delay":0}',
    b'{"at":[0,0,1,0,0],"kind":"crash","type":"a","text":"b","delay":1e400}',
    b'{"at":[0,0,1,0,0],"kind":"crash","type":"a","text":"b","delay":9e99}',
    b'{"at":[0,0,1,0,0],"kind":"nothing","type":"a","text":"b","delay":0}',
    b'{"at":[0,0,1,0,0],"kind":"crash","type":"a","text":"b","delay":"x"}',
    b"[" * 100_000,
    b"\xff\xfe\xfd",
    b"\0" * 4_096,
    b'{"at":' + b"9" * 5_000 + b"}",
]


def _read(path: Path) -> tuple[list[int], int]:
    with path.open("rb") as file:
        reader = FailureReader(file.fileno())
        return [entry.lookup_id for entry in reader.news()], reader.unreadable


def _logged(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    log = FailureLog(descriptor)
    for number in (1, 2, 3):
        log.append(Rollback(0, number, number, 0, Failure(FailureKind.EXCEPTION, "ValueError", f"bad {number}", "trace" * number)))
    log.append_halt(3, {"code": "X"})
    os.close(descriptor)


@pytest.mark.parametrize("line", LINES, ids=[line[:40].decode(errors="replace") for line in LINES])
def test_a_line_of_the_log_that_is_none_is_skipped(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "log"
    _logged(path)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:3], line, *lines[3:]]))
    assert _read(path) == ([1, 2, 3], 1)


def test_a_log_cut_at_any_byte_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    _logged(path)
    content = path.read_bytes()
    whole = [place for place in range(len(content)) if content[place : place + 1] == b"}" and json_ends(content[: place + 1])]
    for end in range(len(content)):
        path.write_bytes(content[:end])
        assert _read(path) == ([1, 2, 3][: sum(place < end for place in whole[:3])], 0)


def json_ends(content: bytes) -> bool:
    try:
        json.loads(content.rpartition(b"\n")[2])
    except ValueError:
        return False
    return True


# Rights ---------------------------------------------------------------------------------------------------------------


def _refused(folder: Path, name: str) -> None:
    """Be somebody else; the superuser may read everything."""
    os.setgid(65534)
    os.setuid(65534)
    with pytest.raises(ServerSessionError, match=rf"{name}.*cannot be read: Permission denied.*Give this user the right"):
        read_journals([folder])


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.getuid() and len(parent.parts) > 2:
            parent.chmod(0o755)
    tmp_path.chmod(0o755)
    folder = tmp_path / "journal"
    folder.mkdir(mode=0o777)
    written(folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # else nobody but its owner and its group may read it
    yield folder
    folder.chmod(0o777)


@pytest.mark.skipif(os.getuid() != 0, reason="takes another user's place")
@pytest.mark.parametrize("what", ["*.journal", "*.log", ""])
def test_what_this_user_may_not_read_is_an_error_and_not_forgotten(shared: Path, what: str) -> None:
    path = next(shared.glob(what)) if what else shared
    path.chmod(0)
    child = children.start(_refused, shared, path.name)
    child.join()
    assert child.exitcode == 0
