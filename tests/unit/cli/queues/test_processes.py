"""Commands as processes: interrupts, pipes, what they import, and what they tell meanwhile."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.cli.terminal import ProgressLine
from tests.unit.cli.queues.given import MOVE, TAKE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.given.command import Ran


def start(line: str, **more: Any) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    command = [sys.executable, "-m", "airflow_poison", *shlex.split(line)]

    def hear_interrupts() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # those who run the tests in the background ignore them

    given: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": env, "process_group": 0, **more}
    return subprocess.Popen(command, preexec_fn=hear_interrupts, **given)  # noqa: PLW1509  (the tests have no threads here)


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["process", "none"])
def test_an_interrupt_says_what_is_left_and_the_run_key_goes_on_at_once(poison: Callable[..., Ran], isolation: str) -> None:
    line = f"receive orders --handler tests.unit.cli.shop:linger --engine local --isolation {isolation} --store q"
    poison("send orders one two three --system Msmq4")
    with start(line) as process:
        until = time.monotonic() + 60
        while time.monotonic() < until and not (Path("taken").exists() and "2\n" in Path("taken").read_text()):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    [told] = err.splitlines()
    assert told.startswith("interrupted: 3 messages of queue 'orders' stay claimed, for what works on them had not ended yet. ")
    key = re.search(r"--run-key (\w+), or from [0-9-]{10} [0-9:]{8} UTC on with any receive\.$", told)
    assert key is not None
    Path("quick").touch()
    with start(f"{line} --run-key {key[1]} -o json") as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    numbers = json.loads(out)
    assert (numbers["settled"], numbers["crashes"], numbers["rollbacks"]) == (3, 1, 1), "it was alone with its handler, and counts a rollback"
    assert sorted(Path("taken").read_text().split()) == ["1", "2", "2", "3"], "what had returned is not delivered again"


def test_an_interrupt_of_a_pass_that_can_give_its_claim_up_says_that_any_receive_goes_on(poison: Callable[..., Ran]) -> None:
    line = "receive orders --handler tests.unit.cli.shop:linger_a_little --engine local --isolation none --store q"
    poison("send orders one two --system Msmq4")
    with start(line) as process:
        until = time.monotonic() + 60
        while time.monotonic() < until and not (Path("taken").exists() and "2\n" in Path("taken").read_text()):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == (
        "interrupted: the claim of 2 messages of queue 'orders' is given up: any receive goes on with them at once. "
        "What was delivered is written down and is not delivered again; a message that was alone with its handler counts one rollback."
    )
    assert json.loads(poison(f"{line.removesuffix(' --store q')} -o json").out)["settled"] == 2
    assert Path("taken").read_text() == "1\n2\n", "what had returned is not delivered again"


def test_an_interrupt_before_anything_is_claimed_says_so(poison: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("airflow_poison.passes.engines.SupervisedEngine.prepare", interrupt)
    poison("send orders one --system Msmq4")
    assert poison(f"receive orders {TAKE}", code=130).err == (
        "interrupted: nothing of queue 'orders' is claimed by this pass: its messages are settled, or where they were.\n"
    )


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_standard_output_has_the_result_and_nothing_that_handlers_print(poison: Callable[..., Ran], isolation: str) -> None:
    poison("send orders one --system Msmq4")
    line = f"receive orders --handler tests.unit.cli.shop:chat --engine local --isolation {isolation} --store q -o json"
    with start(line) as process:
        out, err = process.communicate(timeout=60)
    assert json.loads(out)["settled"] == 1
    assert "taken 1" in err


def test_a_reader_that_goes_away_is_no_error(poison: Callable[..., Ran]) -> None:
    poison(f"send orders {'one ' * 50} {MOVE}")
    for line in ("show orders --limit 50 --body", "show orders --limit 50 --body -o json", "list"):
        with start(f"{line} --store q") as process:
            assert process.stdout is not None
            process.stdout.close()
            assert process.stderr is not None
            assert process.stderr.read() == ""
        assert process.returncode == 141


EACH_OF = """
import sys
from airflow_poison.cli.main import main
for line in sys.argv[1:]:
    try:
        main(line.split())
    except SystemExit:
        pass
    print(line, sorted(sys.modules.keys() & {"airflow", "pyspark"}), file=sys.stderr)
"""


def test_looking_needs_neither_airflow_nor_spark(poison: Callable[..., Ran]) -> None:
    poison(f"send orders one {MOVE}")
    commands = ("list", "show orders", "inspect orders", "history orders", "send orders two", f"receive orders {TAKE}", "return orders")
    lines = [f"{command} --store q" for command in commands]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    ran = subprocess.run([sys.executable, "-c", EACH_OF, *lines], check=True, capture_output=True, text=True, env=environment)
    told = ran.stderr.splitlines()
    assert [line for line in told if line.startswith(tuple(lines))] == [f"{line} []" for line in lines]


@pytest.mark.parametrize(("terminal", "written"), [(True, "\r\x1b[Kone\r\x1b[Ktwo\r\x1b[K"), (False, "one\ntwo\n")])
def test_progress_is_one_line_of_a_terminal_and_lines_elsewhere(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, written: str) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    monkeypatch.setattr("sys.stderr", shown := Screen())
    progress = ProgressLine()
    progress.report("one")
    progress.report("two")
    progress.end()
    progress.end()
    assert shown.getvalue() == written
