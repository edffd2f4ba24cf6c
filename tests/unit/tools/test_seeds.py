"""A run of the tests can be repeated from what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CONFTEST = "from tests.conftest import pytest_configure, pytest_report_header, pytest_terminal_summary\n"
PROPERTY = """
import random
from hypothesis import given, strategies as st

def test_property():
    drawn = []

    @given(st.integers(0, 2**40))
    def rare(number):
        drawn.append(number)

    rare()
    print("drawn", random.random(), drawn)
    assert not FAILS
"""


def run(folder: Path, *options: str, fails: bool = False) -> tuple[str, str]:
    """Run a property in a pytest of its own, as on a machine that sets CI; return its seed as the run prints it, and what was drawn."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_planted.py").write_text(PROPERTY.replace("FAILS", str(fails)))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CI": "true", "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "--rootdir", str(folder), *options, "test_planted.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == int(fails), done.stdout + done.stderr
    [seed] = set(re.findall(r"SEED=(\d+)", done.stdout))
    return seed, next(line for line in done.stdout.splitlines() if "drawn" in line)


def test_a_run_is_another_one_each_time_and_can_be_repeated_with_the_seed_that_it_prints(tmp_path: Path) -> None:
    seed, drawn = run(tmp_path)
    other_seed, others = run(tmp_path)
    assert seed != other_seed
    assert drawn != others
    assert run(tmp_path, f"--randomly-seed={seed}") == (seed, drawn)


def test_a_quiet_run_that_fails_says_its_seed(tmp_path: Path) -> None:
    assert run(tmp_path, "-q", fails=True)[0].isdigit()


@pytest.mark.parametrize("options", [("-p", "no:randomly"), ("--hypothesis-seed=7",)])
def test_other_plugins_and_options_are_at_peace_with_it(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert run(tmp_path, *options)[0].isdigit()
