"""``python -m airflow_poison`` is quick: it starts no Airflow and loads no library that it does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_poison.cli.main import main
from tools import house

HEAVY = {"airflow", "pyspark", "py4j", "deltalake", "pyarrow", "pandas", "numpy", "pendulum"}

CODE = """
import sys, json
from airflow_poison.cli.main import main
main({arguments!r})
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["policies"], ["policies", "ServiceBroker"], ["simulate", "Msmq4"]], ids=" ".join)
def test_a_command_imports_nothing_heavy(arguments: list[str]) -> None:
    ran = subprocess.run([sys.executable, "-c", CODE.format(arguments=arguments)], check=True, capture_output=True, text=True)
    assert set(json.loads(ran.stderr)) & HEAVY == set()


def test_reading_the_commands_imports_no_room_behind_them() -> None:
    code = "import sys, airflow_poison.cli.main; print(*(name for name in sys.modules if name.startswith('airflow_poison.')))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert {house.room_of(name) for name in found} <= house.DOORS


def test_the_module_runs() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "airflow_poison", "simulate", "Msmq4", "--set", "ReceiveErrorHandling=Move"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "m ends in orders;poison after 18 deliveries, 1 h after the start." in ran.stdout
    assert ran.stderr == ""


def test_a_reader_that_goes_away_is_no_error() -> None:
    """As with ``... | head -1``."""
    command = [sys.executable, "-m", "airflow_poison", "simulate", "Msmq4", "--routine"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("closed", "line", "code"),
    [
        (">&-", "policies", 0),
        ("2>&-", "list --store {store} --timezone Nowhere", 2),
        ("<&-", "send orders --file - --store {store} --system Msmq4 --set ReceiveErrorHandling=Move", 0),
        ("<&- >&- 2>&-", "send orders one --store {store} --system Msmq4 --set ReceiveErrorHandling=Move", 0),
    ],
)
def test_a_closed_stream_is_no_error(closed: str, line: str, code: int, tmp_path: Path) -> None:
    command = f"{sys.executable} -m airflow_poison {line.format(store=tmp_path)} {closed}"
    ran = subprocess.run(command, shell=True, check=False, capture_output=True, text=True)
    assert (ran.returncode, "Traceback" in ran.stderr) == (code, False)


@pytest.mark.parametrize("words", [["--store", "q", "list"], ["--store=q", "list"], ["--json"]])
def test_an_option_before_the_command_is_refused_by_its_name(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The folder was said to be no command."""
    with pytest.raises(SystemExit, match="2"):
        main(words)
    wrong = f"error: {words[0]} stands before the command: options come after it, for example list --store FOLDER; "
    assert capsys.readouterr().err == f"{wrong}see python -m airflow_poison --help\n"
