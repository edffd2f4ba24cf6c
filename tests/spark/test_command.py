"""``airflow poison receive`` on Spark as a process of its own, as a terminal interrupts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_poison.cli.main import main
from tests.given.pages import ROOT

RECEIVE = "receive orders --store q --handler tests.unit.cli.shop:linger --spark local[2] -o json"


def start(line: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "airflow_poison", *line.split()]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, process_group=0)


@pytest.mark.long
def test_a_source_is_received_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    pq.write_table(pa.table({"id": [1, 2], "amount": ["1", "bad"], "price": [1.5, 2.5], "at": [None, None]}), "in/a.parquet")
    os.utime("in/a.parquet", (0, 0))
    options = f"--source {tmp_path}/in/*.parquet --transform tests.spark.test_in_place:cast --output-table {tmp_path}/clean --spark local[2] -o json"
    with start(f"receive orders --store q --system Msmq4 --set receive_error_handling=Move {options}") as process:
        out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    assert json.loads(out)["in_place"] == {"read": 2, "landed": 1, "filtered": 0, "messages": 1}


@pytest.mark.campaign
def test_an_interrupted_pass_on_spark_gives_its_claim_up_and_any_receive_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    main(["send", "orders", "one", "two", "three", "--store", "q", "--system", "Msmq4"])
    with start(RECEIVE) as process:
        until = time.monotonic() + 240
        while time.monotonic() < until and process.poll() is None and not Path("taken").exists():
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, ""), err
    assert "Traceback" not in err
    told = err.splitlines()[-1]
    assert told.startswith("interrupted: the claim of 3 messages of queue 'orders' is given up: any receive goes on with them at once. ")
    Path("quick").touch()
    with start(RECEIVE) as process:
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert json.loads(out)["settled"] == 3
