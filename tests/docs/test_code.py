"""Every Python block of the documentation runs, page by page, in the order of the page.

Pages that use Airflow or Spark run in a process of their own, in a folder with a queue prepared for them; Airflow is imported once for all of
them, before they are forked. DAGs are made, not run: ``tests/airflow`` runs them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_poison import Message, Msmq4
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.store import open_store
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.schema import SubQueue
from tests.docs import page_process
from tests.given import forked
from tests.given.pages import PAGES, name, script

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW = datetime(2013, 1, 1, tzinfo=UTC)
WITH_CODE = [page for page in PAGES if script(page).strip()]
HEAVY = ("airflow.sdk", "pyspark", "airflow_poison.hooks", "airflow_poison.operators", "airflow_poison.taskgroups")


@pytest.fixture(scope="module")
def airflow_imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have Airflow imported in the process that pages are forked from."""
    forked.preload(
        "airflow.sdk", "pyarrow", "deltalake", page_process.__name__, environment=page_process.airflow_at(tmp_path_factory.mktemp("airflow"))
    )


def refuse_bad(message: Message) -> None:
    if message.text.startswith("bad"):
        raise LookupError("unknown plane")


def queue_with(place: Path, name: str, policy: Msmq4, *bodies: str) -> None:
    """Make a queue and receive once: what is bad has ended as the policy says."""
    clock = VirtualClock(NOW)
    store = open_store(str(place))
    table = declare(store, name, policy, clock)
    send(table, messages_to_batches(bodies), key="prepared", clock=clock)
    ReceivePass(table=table, policy=policy, handler=refuse_bad, engine=LocalEngine, clock=clock, isolation="none", store=store).run("prepared")


def poisoned(home: Path) -> None:
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=0, retry_cycle_delay=timedelta(0), receive_error_handling="Move")
    queue_with(home / "poison", "orders", policy, "good", "bad one", "bad two")


def halted(home: Path) -> None:
    """Message 1 has halted the queue; messages 2 and 3 are in poison."""
    queue_with(home / "poison", "orders", Msmq4(receive_retry_count=0, max_retry_cycles=0), "bad one", "good", "good")
    table = open_store(str(home / "poison")).open("orders")
    [file] = table.snapshot().files
    rows = table.read(file)
    table.split_file(file, [rows.slice(0, 1), rows.slice(1)])
    table.move_files(lambda snapshot: [file for file in snapshot.files if file.min_lookup_id > 1], SubQueue.POISON, NOW)


def demo(home: Path) -> None:
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
    queue_with(home / ".demo" / "poison", "flights", policy, "good", "bad")


LONG = {f"docs/how-to/{page}.md" for page in ("protect-a-job", "port-a-spark-job", "query-queue-tables")}
PREPARED: dict[str, Callable[[Path], None]] = {
    "README.md": demo,
    "docs/how-to/query-queue-tables.md": poisoned,
    "docs/how-to/deal-with-poison.md": poisoned,
    "docs/how-to/recover.md": halted,
}


@pytest.mark.parametrize("page", [pytest.param(page, id=name(page), marks=[pytest.mark.long] * (name(page) in LONG)) for page in WITH_CODE])
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if name(page) in PREPARED:
        PREPARED[name(page)](tmp_path)
    code = script(page)
    if any(module in code for module in HEAVY):
        request.getfixturevalue("airflow_imported")
        run_apart(page, tmp_path)
    else:
        monkeypatch.chdir(tmp_path)
        exec(compile(code, name(page), "exec", dont_inherit=True), {"__name__": "page"})


def run_apart(page: Path, home: Path) -> None:
    """Run a page in a process of its own."""
    ran = forked.run(page_process.run, name(page), script(page), home, seconds=280.0)
    assert ran.code == 0, f"{name(page)}:\n{ran.printed[-2_000:]}\n{ran.errors[-4_000:]}"
