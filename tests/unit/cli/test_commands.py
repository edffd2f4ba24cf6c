"""The commands as people use them: what they print, and how they refuse."""

from __future__ import annotations

import io
import json
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.cli.command import noted_warnings
from airflow_poison.rules import SYSTEMS, policy_from_dict
from airflow_poison.rules.described import describe
from airflow_poison.values.errors import ConfigurationWarning
from tests.given.command import Ran, run

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True, params=[80, 200], ids="{} columns".format)
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    number: int = request.param
    monkeypatch.setenv("COLUMNS", str(number))
    return number


def lines(ran: Ran) -> list[str]:
    assert (ran.err, ran.code) == ("", 0)
    return ran.out.splitlines()


def words(ran: Ran) -> str:
    """Return what is printed as one line, however it was wrapped."""
    return " ".join(" ".join(lines(ran)).split())


# policies -------------------------------------------------------------------------------------------------------


def test_policies_lists_every_system_in_terminals_of_any_width(capsys: Capture, columns: int) -> None:
    ran = run(capsys, "policies")
    told = words(ran)
    for system in SYSTEMS:
        assert f"{system} {describe(system).title}"[:30] in told
    assert max(map(len, lines(ran))) <= columns


@pytest.mark.parametrize("system", SYSTEMS)
def test_policies_of_a_system_names_every_setting_its_words_and_its_default(capsys: Capture, columns: int, system: str) -> None:
    ran = run(capsys, f"policies {system}")
    told = "".join(words(ran).split())
    for setting in describe(system).settings:
        for word in (setting.name, *setting.aliases):
            assert "".join(word.split()) in told or columns > 80  # cells of a table stand side by side
    assert all(setting.name in ran.out for setting in describe(system).settings)
    table = [line for line in lines(ran) if not line.startswith(("Wherever", describe(system).title))]
    assert max(map(len, table)) <= columns


def test_policies_as_json(capsys: Capture) -> None:
    found = json.loads(run(capsys, "policies -o json").out)
    assert [system["system"] for system in found["systems"]] == list(SYSTEMS)
    assert found["systems"][0] == {
        "system": "Msmq4",
        "title": "WCF queued bindings on MSMQ 4.0",
        "summary": "immediate retries, retry cycles, final disposition",
    }


def test_policies_of_a_system_as_json(capsys: Capture) -> None:
    found = json.loads(run(capsys, "policies msmq4 -o json").out)
    settings = {setting.pop("name"): setting for setting in found["settings"]}
    assert settings["retry_cycle_delay"] == {
        "aliases": ["RetryCycleDelay"],
        "type": "duration",
        "allowed": [],
        "optional": False,
        "default": 1800,
        "meaning": "how long it waits there, a duration >= 0.",
    }
    assert settings["receive_error_handling"]["allowed"] == ["Fault", "Drop", "Reject", "Move"]


# simulate -------------------------------------------------------------------------------------------------------

OPTIONS: list[tuple[str, str]] = [
    ("Msmq4", "m stays in orders after 18 deliveries, because the endpoint has halted."),
    ("msmq4 --set receiveerrorhandling=move --queue arrivals", "m ends in arrivals;poison after 18 deliveries, 1 h after the start."),
    ("--set ReceiveErrorHandling=Move ReceiveRetryCount=2 Msmq4", "9 deliveries in 12 receives."),
    ("Msmq4 --set ReceiveErrorHandling=Move --set ReceiveRetryCount=2", "9 deliveries in 12 receives."),
    ("Msmq4 --message 'a=rb ok' b=ok --at b=1h30m", "b is processed after 1 delivery, 1 h 30 min after the start."),
    ("Msmq4 --until 10m", "m waits in orders;retry after 6 deliveries, until 30 min after the start."),
    ("ServiceBroker --action 1h:remove:m 2h:enable", "m is removed by hand after 5 deliveries, 1 h after the start."),
    ("ServiceBroker --action 1h:restart-server", "The queue is disabled at once, at m."),
    ("ListenerPort --set maxRetries=2 --action 1m:alter:maxRetries=5,maxSessions=1 2m:open", "The endpoint stops 2 min after the start, at m."),
    ("DefaultMessaging --set exception_destination=None --most-receives 9", "It does not end: the simulation was stopped after 9 receives"),
    ("ListenerPort --set BOQNAME=B maxRetries=3 BOTHRESH=2 --access B=missing", "m ends in SYSTEM.DEAD.LETTER.QUEUE after 2 deliveries, at once."),
    ("Msmq4 --events", "POISON_EXCEPTION"),
    ("Msmq4 --routine", "ROLLED_BACK"),
]


@pytest.mark.parametrize(("line", "told"), OPTIONS)
def test_simulate_does_as_its_options_say(capsys: Capture, line: str, told: str) -> None:
    assert told in words(run(capsys, f"simulate {line}"))


def test_simulate_fits_the_terminal(capsys: Capture, columns: int) -> None:
    ran = run(capsys, "simulate ListenerPort --set maxRetries=3 BOTHRESH=2 BOQNAME=ORDERS.WITH.A.LONG.NAME.FOR.A.BACKOUT.QUEUE --at m=1h --events")
    assert max(len(line.rstrip()) for line in lines(ran)[1:] if not line.endswith(".")) <= columns  # sentences go on where nothing is a terminal


def test_simulate_tells_what_differs_from_the_defaults(capsys: Capture) -> None:
    assert lines(run(capsys, "simulate Msmq4 --set RetryCycleDelay=90 sessions=on MaxRetryCycles=2"))[0] == (
        "Msmq4: retry_cycle_delay=1 min 30 s, sessions=true"
    )


def test_simulate_leaves_the_middle_of_a_long_story_out(capsys: Capture) -> None:
    ran = run(capsys, "simulate DefaultMessaging --set exception_destination=None")
    assert len(lines(ran)) < 40
    assert "more rows; --events lists every event" in words(ran)
    assert "13 h 52 min 55 s" in ran.out


def test_simulate_as_json_has_the_documented_keys(capsys: Capture) -> None:
    found: dict[str, Any] = json.loads(run(capsys, "simulate Msmq4 --set ReceiveErrorHandling=Move -o json").out)
    assert list(found) == ["policy", "queue", "start", "until", "messages", "actions", "deliveries", "events", "answer", "warnings"]
    assert found["answer"]["deliveries"] == 18
    assert found["answer"]["ends"] == {"m": "poison"}


def test_wmq_16_warnings_are_told_once_on_standard_error_and_in_json(capsys: Capture) -> None:
    ran = run(capsys, "simulate ActivationSpecification --set BOTHRESH=5 --action 1h:open -o json")
    told = ran.err.splitlines()
    assert [line.partition(" ")[0] for line in told] == ["warning:", "warning:"]
    assert [f"warning: {text}" for text in json.loads(ran.out)["warnings"]] == told
    assert len(set(told)) == 2
    assert ran.code == 0


def test_a_warning_is_told_once(capsys: Capture) -> None:
    with noted_warnings() as told:
        for text in ("loses messages", "loses messages", "blocks messages"):
            warnings.warn(text, ConfigurationWarning, stacklevel=1)
    assert told == ["loses messages", "blocks messages"]
    assert capsys.readouterr().err == "warning: loses messages\nwarning: blocks messages\n"


def test_wmq_16_hints_are_told_as_hints(capsys: Capture) -> None:
    ran = run(capsys, "simulate ActivationSpecification --set BOTHRESH=5 BOQNAME=B failureDeliveryCount=8")
    assert ran.err.startswith("hint: the counter is shared")


def test_settings_come_from_a_file_and_set_overrides_them(capsys: Capture, tmp_path: Path) -> None:
    place = tmp_path / "policy.json"
    place.write_text(json.dumps({"system": "Msmq4", "ReceiveRetryCount": 1, "RetryCycleDelay": "10m", "ReceiveErrorHandling": "Move"}))
    ran = run(capsys, f"simulate --policy-json {place} --set receive_error_handling=Drop -o json")
    found = json.loads(ran.out)
    wanted = {"system": "Msmq4", "receive_retry_count": 1, "retry_cycle_delay": 600, "receive_error_handling": "Drop"}
    assert found["policy"] == policy_from_dict(wanted).to_dict()


def test_what_json_says_can_be_simulated_again_from_standard_input(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = json.loads(run(capsys, "simulate DefaultMessaging --set blocked_retry_interval=7s -o json").out)["policy"]
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(policy)))
    assert json.loads(run(capsys, "simulate --policy-json - -o json").out)["policy"] == policy


# Errors ---------------------------------------------------------------------------------------------------------

WRONG = [
    ("", "COMMAND"),
    ("destroy", "'destroy'"),
    ("policies Msmq5", "the nearest is Msmq4"),
    ("policies Msmq4 -o xml", "table, json"),
    ("policies Msmq4 more", "more"),
    ("simulate", "SYSTEM is missing: one of Msmq4"),
    ("simulate Msmq5", "the nearest is Msmq4"),
    ("simulate Msmq4 --nonsense", "--nonsense"),
    ("simulate Msmq4 --set", "--set"),
    ("simulate Msmq4 --set ReceiveRetryCount", "expected NAME=VALUE"),
    ("simulate Msmq4 --set =5", "expected NAME=VALUE"),
    ("simulate Msmq4 --set sessions=on sessions=off", "given twice"),
    ("simulate Msmq4 --set ReceiveRetries=5", "the nearest is receive_retry_count"),
    ("simulate Msmq4 --set ReceiveRetryCount=-5", "from 0 to 2147483647"),
    ("simulate Msmq4 --set sessions=on MaxBatchSize=3", "while sessions=True"),
    ("simulate Msmq4 --message m", "expected NAME=VALUE"),
    ("simulate Msmq4 --message m=fail", "'fail' is not one of ok, rb"),
    ("simulate Msmq4 --message 'm=rb* ok'", "only the last word"),
    ("simulate Msmq4 --message m=rb m=ok", "given twice"),
    ("simulate Msmq4 --at x=5", "'x'"),
    ("simulate Msmq4 --at m=later", "later: expected a duration"),
    ("simulate Msmq4 --action 5", "expected AT:VERB"),
    ("simulate Msmq4 --action 5:opne", "the nearest is open"),
    ("simulate Msmq4 --action later:close", "expected a duration"),
    ("simulate Msmq4 --action 5:remove", "remove"),
    ("simulate Msmq4 --action 5:close:m", "expected no message"),
    ("simulate Msmq4 --action 5:alter", "AT:alter:NAME=VALUE"),
    ("simulate Msmq4 --action 5:alter:foo=1", "'foo'"),
    ("simulate Msmq4 --action 5:put_back:m", "put_back 'm'"),
    ("simulate Msmq4 --until tomorrow", "expected a duration"),
    ("simulate Msmq4 --until 9999999d", "year 9999"),
    ("simulate Msmq4 --most-receives 0", "from 1 to 1000000"),
    ("simulate Msmq4 --most-receives 9999999", "from 1 to 1000000"),
    ("simulate Msmq4 --access B=missing", "'B' changes nothing"),
    ("simulate ListenerPort --set BOQNAME=B --access B=gone", "granted, missing, denied"),
    ("simulate Msmq4 --queue 'a;b'", "'a;b'"),
    ("simulate Msmq4 --queue ''", "''"),
    ("simulate Msmq4 -o xml", "table, json"),
    ("simulate Msmq4 --policy-json none.json", "No such file"),
    ("simulate Msmq4 --policy-json .", "directory"),
    ("simulate --policy-json list.json", "a JSON object"),
    ("simulate --policy-json broken.json", "no JSON"),
    ("simulate --policy-json bytes.json", "no JSON"),
    ("simulate --policy-json deep.json", "no JSON"),
    ("simulate --policy-json five.json", "SYSTEM is missing"),
    ("simulate Msmq3 --policy-json four.json", "settings of Msmq4, not of Msmq3"),
]

FILES = {"list.json": b"[1]", "broken.json": b"{", "bytes.json": b"\xff\xfe", "deep.json": b"[" * 100_000, "five.json": b'{"system": 5}'}


@pytest.mark.parametrize(("line", "told"), WRONG)
def test_an_error_is_one_line_on_standard_error_and_exit_code_2(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, told: str
) -> None:
    for name, written in {**FILES, "four.json": b'{"system": "Msmq4"}'}.items():
        (tmp_path / name).write_bytes(written)
    monkeypatch.chdir(tmp_path)
    ran = run(capsys, line)
    assert (ran.out, ran.code) == ("", 2)
    [error] = ran.err.splitlines()
    assert error.startswith("error: ")
    assert told in error


def test_help_is_help(capsys: Capture) -> None:
    for line in ("--help", "policies --help", "simulate --help"):
        ran = run(capsys, line)
        assert (ran.err, ran.code) == ("", 0)
        assert ran.out.startswith("usage: python -m airflow_poison")
