"""The folder of an Airflow: one starter at a time, one mark for its processes, a port that is free."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from tools.airflow.home import MARK, AirflowError, Home, free_port
from tools.airflow.left_over import SESSIONS, _noted, _sessions, end_left_over, note_session
from tools.demo.place import Place

if TYPE_CHECKING:
    from pathlib import Path


def test_a_second_starter_is_told_of_the_first(tmp_path: Path) -> None:
    place = Home(tmp_path)
    with place.alone(), pytest.raises(AirflowError, match=f"process {os.getpid()}"), place.alone():
        pass


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(AirflowError, match=str(taken.getsockname()[1])):
            free_port(taken.getsockname()[1])


def test_only_processes_with_the_mark_are_ended(tmp_path: Path) -> None:
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    ours = subprocess.Popen(sleep, env={MARK: Home(tmp_path).mark()}, stdout=subprocess.PIPE)
    other = subprocess.Popen(sleep, env={MARK: "of another demo"}, stdout=subprocess.PIPE)
    try:
        for process in (ours, other):
            assert process.stdout is not None
            process.stdout.readline()
        assert end_left_over(Home(tmp_path)) == 1
        ours.wait(10)
        assert other.poll() is None
    finally:
        for process in (ours, other):
            process.kill()
            process.communicate()


def test_a_process_that_hides_its_mark_is_known_by_its_session(tmp_path: Path) -> None:
    """Airflow's processes write their titles over their environment."""
    child_of = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)"
    leader = f"import subprocess, sys; print({child_of}.pid, flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", leader], env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    note_session(Home(tmp_path), process.pid)
    process.communicate(b"\n")

    assert end_left_over(Home(tmp_path)) == 1
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


STARTER = """
import sys
from pathlib import Path
from tools.airflow import services
from tools.airflow.home import Home

services._airflow = lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"]
home = Home(Path(sys.argv[1]))
home.logs.mkdir()
started = services.Services(home, home.environment(0, {}, {}), 0, services.WITH_TRIGGERER)
started.start()
print(*started.pids.values(), flush=True)
input()
"""


def test_all_end_when_their_starter_is_killed_even_if_their_home_is_gone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    starter = subprocess.Popen([sys.executable, "-c", STARTER, home], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert starter.stdout is not None
    started = [psutil.Process(int(number)) for number in starter.stdout.readline().split()]
    assert len(started) == 4

    shutil.rmtree(home)
    starter.kill()
    starter.communicate()

    _, alive = psutil.wait_procs(started, timeout=60)
    assert alive == []


def test_a_session_of_an_earlier_boot_is_not_ours(tmp_path: Path) -> None:
    place = Home(tmp_path)
    note_session(place, os.getpid())
    noted = (tmp_path / SESSIONS).read_text()
    (tmp_path / SESSIONS).write_text(noted.replace(str(psutil.boot_time()), "1.0"))
    assert _sessions(_noted(place)) == frozenset()


def test_the_environment_keeps_the_readers_own_airflow_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW_CONN_POISON_DEFAULT", "poison://elsewhere")
    environment = Place(tmp_path).demo_environment(8080, delay=20, every=1)
    assert "AIRFLOW__CORE__EXECUTOR" not in environment
    assert "AIRFLOW_CONN_POISON_DEFAULT" not in environment
    assert environment["AIRFLOW_HOME"] == str(tmp_path)
