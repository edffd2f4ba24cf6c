"""Running a command in the test's own process."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_poison.cli.main import main

if TYPE_CHECKING:
    import pytest


@dataclass(frozen=True)
class Ran:
    out: str
    err: str
    code: object


def run(capsys: pytest.CaptureFixture[str], line: str) -> Ran:
    """Run what stands behind ``airflow poison``."""
    code: object = 0
    try:
        main(shlex.split(line))
    except SystemExit as ended:
        code = ended.code
    out, err = capsys.readouterr()
    return Ran(out, err, code)
