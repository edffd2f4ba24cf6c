"""Instants of the shell in people's time zone: --timezone, POISON_TIMEZONE, Airflow's default."""

from __future__ import annotations

import re
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from airflow_poison.cli import terminal, values
from airflow_poison.values.clock import in_zone
from tests.given.command import run

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[str]
SENT = "send orders one --system Msmq4"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POISON_TIMEZONE", raising=False)
    monkeypatch.delitem(sys.modules, "airflow.configuration", raising=False)
    assert run(capsys, f"{SENT} --store q").code == 0
    assert run(capsys, "disable orders --store q").code == 0


def shown(capsys: Capture, more: str = "") -> str:
    ran = run(capsys, f"history orders --store q {more}")
    assert ran.code == 0, ran.err
    return ran.out


def test_instants_are_in_utc_and_the_heading_says_so_once(capsys: Capture) -> None:
    assert "time (UTC)" in shown(capsys)
    assert not re.search(r"\d UTC", shown(capsys))


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "asked"])
def test_a_zone_is_shown_at_each_instant(capsys: Capture, monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    if zone == "asked":
        monkeypatch.setenv("POISON_TIMEZONE", "Asia/Kolkata")
    told = shown(capsys, "" if zone == "asked" else f"--timezone {zone}")
    assert re.search(r"\d\d:\d\d:\d\d IST +POLICY_CHANGED", told)
    assert "(UTC)" not in told


def test_the_machines_own_zone_is_shown_at_each_instant(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        assert re.search(r"\d\d:\d\d:\d\d UTC +POLICY_CHANGED", shown(capsys, "--timezone system"))
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_option_wins_over_the_variable_and_this_over_airflows_default(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = SimpleNamespace(get=lambda section, key, fallback: "America/Santiago" if (section, key) == ("core", "default_timezone") else fallback)
    monkeypatch.setitem(sys.modules, "airflow.configuration", SimpleNamespace(conf=conf))
    assert re.search(r"\d -0[34] +POLICY_CHANGED", shown(capsys))
    monkeypatch.setenv("POISON_TIMEZONE", "Asia/Kolkata")
    assert "IST" in shown(capsys)
    assert "time (UTC)" in shown(capsys, "--timezone UTC")


def test_an_unknown_zone_is_named(capsys: Capture) -> None:
    ran = run(capsys, "list --store q --timezone Mars")
    assert (ran.code, ran.out) == (2, "")
    assert "--timezone='Mars'" in ran.err
    assert "Europe/Berlin" in ran.err


def test_typed_instants_without_an_offset_are_in_peoples_zone() -> None:
    with in_zone("--timezone", "Europe/Berlin"):
        assert values.started("2026-03-29T03:00").isoformat() == "2026-03-29T03:00:00+02:00"
        assert values.since("2026-03-28T03:00", values.now()).isoformat() == "2026-03-28T03:00:00+01:00"
        assert terminal.instant(values.started("2026-03-29T00:59Z")) == "2026-03-29 01:59:00 CET"
    assert values.started("2026-03-29T03:00").isoformat() == "2026-03-29T03:00:00+00:00"


def test_json_is_in_utc(capsys: Capture) -> None:
    assert re.search(r'"at": "[^"]*\+00:00"', shown(capsys, "--timezone Asia/Kolkata -o json"))


def test_durations_of_iso_8601_are_those_of_settings(capsys: Capture) -> None:
    said = run(capsys, "simulate Msmq4 --set retry_cycle_delay=PT1H30M ReceiveErrorHandling=Move").out
    assert "retry_cycle_delay=1 h 30 min" in said
