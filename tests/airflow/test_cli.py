"""The commands in Airflow's own command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.cli.commands import COMMANDS
from airflow_poison.get_provider_info import get_provider_info

if TYPE_CHECKING:
    from collections.abc import Sequence

AIRFLOW = Path(sys.executable).with_name("airflow")


def airflow(*words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "80", "PYTHONWARNINGS": "ignore"}
    del env["AIRFLOW__CORE__UNIT_TEST_MODE"]  # with it Airflow tells so on standard output
    return subprocess.run([AIRFLOW, *words], capture_output=True, text=True, env=env, check=False)


def test_the_provider_offers_the_group_with_every_command() -> None:
    assert get_provider_info()["cli"] == ["airflow_poison.cli.definition.get_poison_cli_commands"]

    from airflow_poison.cli.definition import get_poison_cli_commands

    [group] = get_poison_cli_commands()
    assert (group.name, [command.name for command in group.subcommands]) == ("poison", [command.name for command in COMMANDS])


def test_airflow_poison_policies_lists_the_systems() -> None:
    ran = airflow("poison", "policies")
    assert ran.returncode == 0, ran.stderr
    for system in ("Msmq4", "ServiceBroker", "DefaultMessaging", "ActivationSpecification"):
        assert f"\n{system}" in ran.stdout


def test_wcf_e1_airflow_poison_simulate_prints_one_json_object_and_nothing_else() -> None:
    ran = airflow("poison", "simulate", "Msmq4", "--set", "ReceiveErrorHandling=Move", "--output", "json")
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)["answer"]
    assert (answer["deliveries"], answer["elapsed"], answer["ends"]) == (18, 3600, {"m": "poison"})


@pytest.mark.parametrize("words", [("policies", "Msmq5"), ("simulate", "Msmq4", "--set", "Retries=5")], ids=" ".join)
def test_an_error_is_one_line_with_exit_code_2(words: Sequence[str]) -> None:
    ran = airflow("poison", *words)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in ran.stderr
