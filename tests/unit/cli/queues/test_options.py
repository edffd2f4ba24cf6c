"""``--option`` of ``receive``: settings of the declaration that have no option of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_poison.store import open_store
from airflow_poison.store.parking import parks
from airflow_poison.values.schema import SubQueue
from tests.given.command import run

from .given import TAKE

if TYPE_CHECKING:
    from pathlib import Path

MOVE = "--system Msmq4 --set receive_error_handling=Move"


@pytest.mark.parametrize(("given", "parked"), [("on", True), ("off", False)])
def test_a_setting_without_an_option_of_its_own_is_given_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str, *, parked: bool
) -> None:
    store = f"--store {tmp_path}"
    run(capsys, f"send orders '{{}}' {MOVE} {store}")
    assert run(capsys, f"receive orders {TAKE} --option park_group={given} {store}").code == 0
    assert parks(open_store(str(tmp_path)).open("orders").snapshot().control.desk, SubQueue.MAIN) is parked


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("park_group=maybe", "--option park_group"),
        ("isolation=none", "isolation has an option of its own"),
        ("batch_size=5", "batch_size has an option of its own"),
        ("max_bytes=5", "expected one of on_bad_cell, mask, park_group"),
        ("deliver=shop:upsert", "expected one of"),
        ("park_group", "expected NAME=VALUE"),
    ],
)
def test_what_is_no_such_setting_is_refused_and_nothing_is_received(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, text: str
) -> None:
    store = f"--store {tmp_path}"
    run(capsys, f"send orders '{{}}' {MOVE} {store}")
    ran = run(capsys, f"receive orders {TAKE} --option {option} {store}")
    assert (ran.code, text in ran.err) == (2, True), ran.err
    [file] = open_store(str(tmp_path)).open("orders").snapshot().files
    assert file.rows == 1
