"""The commands in Airflow's own command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.cli.main import COMMANDS
from airflow_poison.get_provider_info import get_provider_info
from airflow_poison.passes.alter import declare
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.values.clock import SystemClock
from tests.given import forked
from tests.unit.cli.test_completion import asked, completed, words_of

from . import fresh

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_poison.store import QueueStore

AIRFLOW = Path(sys.executable).with_name("airflow")


def airflow(*words: str) -> forked.Ended:
    return forked.run(fresh.airflow, *words)


def test_the_provider_offers_the_group_with_every_command() -> None:
    assert get_provider_info()["cli"] == ["airflow_poison.cli.main.get_poison_cli_commands"]

    from airflow_poison.cli.main import get_poison_cli_commands

    [group] = get_poison_cli_commands()
    assert (group.name, [command.name for command in group.subcommands]) == ("poison", [command.name for command in COMMANDS])


def test_airflow_poison_policies_lists_the_systems() -> None:
    """The program itself; the other tests fork a process that has imported what it runs."""
    env = {**os.environ, "COLUMNS": "80", "PYTHONWARNINGS": "ignore"}
    del env["AIRFLOW__CORE__UNIT_TEST_MODE"]
    ran = subprocess.run([AIRFLOW, "poison", "policies"], capture_output=True, text=True, env=env, check=False)
    assert ran.returncode == 0, ran.stderr
    for system in ("Msmq4", "ServiceBroker", "DefaultMessaging", "ActivationSpecification"):
        assert f"\n{system}" in ran.stdout


def test_wcf_e1_airflow_poison_simulate_prints_one_json_object_and_nothing_else() -> None:
    ran = airflow("poison", "simulate", "Msmq4", "--set", "ReceiveErrorHandling=Move", "--output", "json")
    assert ran.code == 0, ran.errors
    answer = json.loads(ran.printed)["answer"]
    assert (answer["deliveries"], answer["elapsed"], answer["ends"]) == (18, 3600, {"m": "poison"})


def test_airflow_providers_get_shows_all_that_the_provider_tells() -> None:
    ran = airflow("providers", "get", "airflow-poison", "--full", "--output", "json")
    assert ran.code == 0, ran.errors
    [shown] = json.loads(ran.printed)
    told = get_provider_info()
    told["description"] = str(told["description"]).removesuffix(".")  # Airflow shows it so
    assert {name: shown[name] for name in told} == told


@pytest.mark.parametrize("words", [("policies", "Msmq5"), ("simulate", "Msmq4", "--set", "Retries=5")], ids=" ".join)
def test_an_error_is_one_line_with_exit_code_2(words: Sequence[str]) -> None:
    ran = airflow("poison", *words)
    assert (ran.code, ran.printed) == (2, "")
    assert ran.errors.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in ran.errors


# In this process, with the connection of the fixture -----------------------------------------------------------------


@pytest.fixture
def poison(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """Run ``airflow poison ...`` with Airflow's own parser; return what it prints."""

    def running(*words: str, code: int = 0) -> tuple[str, str]:
        from airflow.cli.cli_parser import get_parser

        ended: object = 0
        try:
            args = get_parser().parse_args(["poison", *words])
            args.func(args)
        except SystemExit as exited:
            ended = exited.code
        printed = capsys.readouterr()
        assert ended == code, printed
        return printed.out, printed.err

    return running


def test_the_connection_names_the_store(store: QueueStore, poison: Callable[..., tuple[str, str]]) -> None:
    poison("send", "orders", "one", "two", "--system", "Msmq4")
    assert list(store.names()) == ["orders"]
    queues = json.loads(poison("list", "-o", "json")[0])["queues"]
    assert [(queue["queue"], queue["sub_queues"]["main"]["messages"]) for queue in queues] == [("orders", 2)]
    poison("disable", "orders", "--reason", "of the test")
    assert poison("show", "orders", code=1)[0].startswith("orders: disabled: of the test")


@pytest.mark.long
def test_a_pass_runs_on_the_spark_of_the_connection(store: QueueStore, spark: object, poison: Callable[..., tuple[str, str]]) -> None:
    poison("send", "orders", "one", "bad two", "--system", "Msmq4", "--set", "ReceiveRetryCount=0")
    out, _ = poison("receive", "orders", "--handler", "tests.unit.cli.shop:take", "-o", "json")
    result = json.loads(out[out.index("{\n") :])  # in test mode Airflow logs to standard output
    assert (result["settled"], result["parked"]) == (1, 1)


def test_a_send_with_the_key_of_a_task_sends_nothing_twice(store: QueueStore, poison: Callable[..., tuple[str, str]]) -> None:
    """The command's ``--send-key`` and the operator's ``send_key`` are the same word for the same thing."""
    from airflow_poison.passes.runs import run_key
    from airflow_poison.passes.send import messages_to_batches, send

    table = declare(store, "orders", Msmq4(), SystemClock())
    send(table, messages_to_batches(["one"]), key=run_key(table.uri, "today"), clock=SystemClock())
    assert json.loads(poison("send", "orders", "one", "--send-key", "today", "-o", "json")[0])["repeated"] is True


@pytest.mark.parametrize("words", [("--conn-id", "nosuch"), ("--conn-id", "nosuch", "--store", "x")], ids=" ".join)
def test_a_connection_that_is_not_defined_is_an_error_of_one_line(poison: Callable[..., tuple[str, str]], words: Sequence[str]) -> None:
    out, err = poison("list", *words, code=2)
    assert out == ""
    assert err.splitlines()[-1].startswith("error: ")


def test_a_connection_with_an_unknown_field_is_an_error_of_one_line(poison: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_POISON_DEFAULT", json.dumps({"conn_type": "poison", "extra": {"stor": "x"}}))
    assert "poison_default.extra.stor" in poison("list", code=2)[1].splitlines()[-1]


def offered(line: str, answers: Path) -> set[str]:
    ran = forked.run(fresh.complete, asked(line), str(answers))
    assert ran.code == 0, ran
    return words_of(answers.read_text())


def test_airflows_completion_completes_commands_options_and_queues(store: QueueStore, tmp_path: Path) -> None:
    for name in ("orders", "offers", "bills"):
        declare(store, name, Msmq4(), SystemClock())
    assert offered("airflow poison ", tmp_path / "commands") - {"-h", "--help"} == {command.name for command in COMMANDS}
    assert offered("airflow poison show --l", tmp_path / "options") == {"--limit", "--lookup-id"}
    assert completed("airflow poison show o", [str(AIRFLOW)], {"PYTHONWARNINGS": "ignore"}) == {"orders", "offers"}
