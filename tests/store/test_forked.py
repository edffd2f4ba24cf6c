"""A process that is forked from one that has used a queue is told what to do, by an error that pools of workers hand on."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FORKED = """
import multiprocessing, sys
from airflow_poison import Msmq4, Store

queue = Store(sys.argv[1]).declare("orders", Msmq4())
queue.send(["one"])

def work(number):
    return Store(sys.argv[1]).queue("orders").send([str(number)]).sent

def known(number):
    return queue.send([str(number)]).sent

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for again in (work, known):
            try:
                pool.apply(again, (2,))
            except Exception as error:
                print(type(error).__name__, error)
    print(queue.send(["four"]).first_lookup_id)
"""


def test_a_forked_process_gets_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", FORKED, str(tmp_path)], check=False, capture_output=True, text=True, timeout=60)
    *refused, after = ran.stdout.splitlines()
    assert len(refused) == 2, ran.stdout + ran.stderr
    assert all(line.startswith("StoreUnreachableError") and "get_context('spawn')" in line for line in refused), refused
    assert after == "2"
