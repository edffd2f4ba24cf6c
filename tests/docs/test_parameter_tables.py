"""Every operator, sensor, decorator and task group has a table of its parameters, as the code has them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from airflow_poison.get_provider_info import OPERATORS, SENSORS
from tests.given.pages import ROOT
from tools.parameter_tables import HEADER, PAGE, SECTION, parameters

if TYPE_CHECKING:
    from pathlib import Path

FUNCTIONS = {"retry_cycle", "RetryCycleTimetable", "retry_cycle_schedule", "recovery", "queue_alerts", "queue_asset", "@task.receive", "@task.send"}


def with_table() -> set[str]:
    return {section["title"] for section in SECTION.finditer(PAGE.read_text()) if HEADER in section[0]}


def public(module: str) -> list[str]:
    """Return the operators and sensors of a module. The source is read: importing it would start Airflow in this process."""
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text()
    return re.findall(r"^class (Queue\w+(?:Operator|Sensor))\(", source, re.MULTILINE)


def test_every_operator_sensor_decorator_and_task_group_has_a_table() -> None:
    assert with_table() == {name for module in (*OPERATORS, *SENSORS) for name in public(module)} | FUNCTIONS


def test_the_tables_are_as_the_code_has_them(tmp_path: Path) -> None:
    """In a process of its own, with an Airflow of its own."""
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db"}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tools.parameter_tables", "--check"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def documented(count: int = 1) -> None:
    """Do what a table shows.

    :param count: how many,
        in words | or numbers. (templated)
    """


def undocumented(count: int = 1) -> None:
    """Do what no table can show."""


def test_a_row_has_the_type_the_default_and_the_meaning() -> None:
    assert parameters(documented) == {"count": "| `count` *t* | `int` | 1 | how many, in words \\| or numbers. |\n"}


def test_a_parameter_without_documentation_is_named() -> None:
    with pytest.raises(LookupError, match="undocumented: count: "):
        parameters(undocumented)
