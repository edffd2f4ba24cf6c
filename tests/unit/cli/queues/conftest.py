"""A shell in an empty folder, whose commands work on one store."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.given.command import Ran, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.fixture
def poison(capsys: Capture) -> Callable[..., Ran]:
    """Run a command on the store ``q`` of the test."""

    def running(line: str, *, code: int = 0) -> Ran:
        ran = run(capsys, f"{line} --store q")
        assert ran.code == code, ran
        return ran

    return running
