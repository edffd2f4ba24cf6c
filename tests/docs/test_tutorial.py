"""The tutorial ``docs/tutorial/first-queue.md``, command by command in one shell, with a real Airflow and a real Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.given.pages import ROOT, blocks
from tests.unit.cli.test_documented import untimed

PAGE = ROOT / "docs/tutorial/first-queue.md"
STEP = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
STEPS = [step for block in blocks(PAGE) if block.language == "console" and block.not_run is None for step in STEP.findall(block.code)]
HALTED = {"airflow poison show orders": 1}
"""Commands that say by their exit code that the queue is halted. The first pass does so, too."""


@pytest.mark.timeout(1_200)
def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    (dag_file,) = (block.code for block in blocks(PAGE) if block.language == "python")
    (tmp_path / "airflow" / "dags").mkdir(parents=True)
    (tmp_path / "airflow" / "dags" / "orders.py").write_text(dag_file)
    printed, codes = in_one_shell([command for command, _ in STEPS], tmp_path)
    passes = [code for (command, _), code in zip(STEPS, codes, strict=True) if command == "airflow dags test price_orders"]
    assert passes == [1, 0, 0], printed
    for (command, shown), output, code in zip(STEPS, printed, codes, strict=True):
        wanted, lines = untimed(shown), untimed(output)
        if wanted and wanted[-1] == "...":
            wanted, lines = wanted[:-1], lines[: len(wanted) - 1]
        assert not wanted or lines == wanted, command
        assert "price_orders" in command or code == HALTED.get(command, 0), f"{command}:\n{output}"


def in_one_shell(commands: list[str], folder: Path) -> tuple[list[str], list[int]]:
    """Run commands one after the other; return what each printed and its exit code."""
    mark = "=== ended with"
    script = "".join(f"{command}\ncode=$?; echo; echo '{mark}' $code\n" for command in commands)
    env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    env |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}",
        "COLUMNS": "80",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
    }
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=env, cwd=folder, check=False)
    found = re.findall(rf"(.*?)\n{mark} (\d+)\n", ran.stdout, re.DOTALL)
    assert len(found) == len(commands), ran.stdout[-2_000:] + ran.stderr[-2_000:]
    return [output for output, _ in found], [int(code) for _, code in found]
