"""What goes to the executors, and what comes from them: handlers, files, DataFrames; and what is said where something is missing there."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from airflow_poison.spark.session import connect_session
from airflow_poison.values.errors import ExecutorError, InputError, SettingError, SparkJobError
from tests.spark.places.place import CLUSTER, CONNECT, ROOT
from tests.spark.places.task import Task
from tests.spark.places.travel import (
    close_session,
    go_where,
    listens_elsewhere,
    make_table,
    receive_and_close,
    receive_by_value,
    receive_shipped,
    send_frame,
)
from tools.servers.spark import free_ports

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.store.files import Snapshot
    from tests.spark.places.place import Place
    from tools.servers.spark import Cluster

elsewhere = pytest.mark.parametrize("place", [CLUSTER, CONNECT], indirect=True)
SOURCE = """
from pathlib import Path
from {helper} import suffix

def land(message):
    with Path({calls!r}).open("a") as file:
        file.write(message.text + suffix + "\\n")
"""


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def a_shop(folder: Path, name: str) -> list[str]:
    """Return an archive with a handler that needs a module, and that module."""
    helper, archive, calls = folder / f"{name}_helper.py", folder / f"{name}-1.0-py3-none-any.whl", str(folder / "landed")
    helper.write_text("suffix = '!'\n")
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(f"{name}/__init__.py", "")
        file.writestr(f"{name}/arrivals.py", SOURCE.format(helper=helper.stem, calls=calls))
    return [str(archive), str(helper)]


def unclaimed(snapshot: Snapshot) -> bool:
    return not snapshot.claims and sum(file.rows for file in snapshot.files) == 2


def test_a_handler_in_a_wheel_and_the_module_that_it_imports_reach_the_executors(place: Place, root: str, tmp_path: Path) -> None:
    name = f"shop_{place.where.name.partition('[')[0].replace(' ', '_').lower()}"
    task = Task(root, named=f"{name}.arrivals:land").sent(["one", "two"])

    result = place.call(receive_shipped, task, a_shop(tmp_path, name))

    assert result.settled == 2
    assert sorted((tmp_path / "landed").read_text().split()) == ["one!", "two!"]


def test_a_function_of_a_dag_file_travels_by_value(place: Place, root: str, tmp_path: Path) -> None:
    result = place.call(receive_by_value, Task(root).sent(["one", "two"]), str(tmp_path / "landed"))

    assert result.settled == 2
    assert sorted((tmp_path / "landed").read_text().split()) == ["1", "2"]


@elsewhere
def test_a_handler_that_executors_cannot_import_is_told_before_anything_is_claimed(place: Place, root: str, tmp_path: Path) -> None:
    name = f"unshipped_{place.where.name.replace(' ', '_').lower()}"
    task = Task(root, named=f"{name}.arrivals:land").sent(["one", "two"])

    with pytest.raises(ExecutorError, match=rf"cannot load the handler '{name}.arrivals:land'(?s:.*)py_files"):
        place.call(receive_shipped, task, a_shop(tmp_path, name), ship=False)

    assert unclaimed(task.table().snapshot())


@elsewhere
def test_a_store_that_executors_do_not_see_is_told_before_anything_is_claimed(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path through the working directory, which every process has for itself."""
    monkeypatch.chdir(tmp_path)
    before = place.call(os.getcwd)
    place.call(go_where, str(tmp_path))
    try:
        task = Task("/proc/self/cwd/store").sent(["one", "two"])
        with pytest.raises(ExecutorError, match=r"does not see the queue's folder /proc/self/cwd/store/orders(?s:.*)mount at the same path"):
            place.call(task.receive, "run")
        assert unclaimed(task.table().snapshot())
        with pytest.raises((ExecutorError, SparkJobError), match="Nothing was sent"):
            place.call(send_frame, task, "frame")
        assert unclaimed(task.table().snapshot())
    finally:
        place.call(go_where, before)


def test_a_path_a_table_and_a_dataframe_of_python_functions_are_sent(place: Place, root: str, tmp_path: Path) -> None:
    task, path = Task(root).sent(["one"]), str(tmp_path / "parquet")
    place.call(make_table, "fifty", path)

    sent = [
        place.call(send_frame, task, "path", path=path),
        place.call(send_frame, task, "table", table="fifty"),
        place.call(send_frame, task, "frame"),
    ]
    again = place.call(send_frame, task, "frame")

    assert [(each.sent, each.repeated) for each in sent] == [(50, False), (50, False), (200, False)]
    assert (again.sent, again.repeated) == (200, True)
    bodies = Counter(bytes(row["body"]).decode().split()[0] for row in task.rows().values())  # type: ignore[call-overload]  # bytes
    fifty = Counter(map(str, range(50)))
    assert bodies == fifty + fifty + Counter(map(str, range(200))) + Counter(["one"])


def test_a_path_that_is_not_there_is_told(place: Place, root: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Spark cannot read path=.*PATH_NOT_FOUND.*Nothing was sent"):
        place.call(send_frame, Task(root).sent(["one"]), "gone", path=str(tmp_path / "gone"))


@pytest.mark.parametrize("place", [CONNECT], indirect=True)
def test_a_pass_begins_another_session_where_the_server_has_closed_the_last(place: Place, root: str) -> None:
    task = Task(root).sent(["one", "two"])
    place.call(close_session)

    assert place.call(task.receive, "after").settled == 2


@pytest.mark.parametrize("place", [CONNECT], indirect=True)
def test_a_session_that_ends_under_a_pass_is_told_and_the_pass_goes_on_with_the_next(place: Place, root: str) -> None:
    task = Task(root).sent(["good", "linger", "good"])

    with pytest.raises(SparkJobError, match=r"the session with the Spark Connect server has ended|the job was cancelled on the Spark Connect server"):
        place.call(receive_and_close, task)
    task.go_on()

    assert place.call(task.receive, "run").settled == 3


def test_a_server_that_is_not_there_is_told_within_seconds_and_without_its_token() -> None:
    """In a process of its own: one process has one kind of Spark."""
    (port,) = free_ports(1)
    code = f"from airflow_poison.spark.session import get_session; get_session('sc://127.0.0.1:{port}/;token=hush')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert f"SparkConnectError: No session with the Spark Connect server sc://127.0.0.1:{port}: " in ran.stderr
    assert "cannot be reached" in ran.stderr
    assert "Check host, port" in ran.stderr
    assert "hush" not in ran.stderr.rpartition("SparkConnectError")[2]


@pytest.mark.parametrize("place", [CLUSTER], indirect=True)
def test_a_process_has_one_kind_of_spark(place: Place, root: str) -> None:
    assert place.call(Task(root).sent(["one"]).receive, "run").settled == 1
    with pytest.raises(SettingError, match="one kind of Spark in a process"):
        place.call(connect_session, "sc://127.0.0.1:1", {})


def test_everything_listens_on_loopback_alone(place: Place, cluster: Cluster, root: str) -> None:
    assert place.call(Task(root).sent(["one"]).receive, "run").settled == 1, "what there is has begun"
    assert place.call(listens_elsewhere, [place.call(os.getpid)]) == []
    assert listens_elsewhere([server.process.pid for server in cluster.servers]) == []
