"""The demo's settings, the figures that it must end with, and what it says where it cannot run."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tools.demo.__main__ import _options, main
from tools.demo.account import Books, Cycle, Depth, Pass, Taken
from tools.demo.figures import Figures
from tools.demo.lake import home_of_servers, in_folder, start_afresh
from tools.demo.place import Place
from tools.servers.spark import ServerError, check_mounts

ROOT = Path(__file__).parents[3]
BOOKS = Books((Taken(1, 10, 5, 0, 5),), (Cycle(1, Pass(5, 3, 0, 2, 0, 15, 1.0), 5, 3, Depth(poison=2)),), Depth(poison=2))
ALERTS = [{"kind": "poison", "key": "a", "count": 2}]
FIGURES = Figures(read=10, poison=2)


@pytest.mark.parametrize(("given", "store"), [([], "folder"), (["--store", "folder"], "folder"), (["--store", "s3"], "s3")])
def test_the_store_is_a_folder_unless_it_is_said_to_be_an_object_store(given: list[str], store: str) -> None:
    assert _options(given).store == store


def test_another_store_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        _options(["--store", "gcs"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "--store: invalid choice: 'gcs'" in said
    assert "folder" in said
    assert "s3" in said


@pytest.mark.parametrize(
    ("given", "wanted"), [((), "tools.demo"), (("STORE=s3",), "tools.demo --store s3"), (("STORE=gcs",), "tools.demo --store gcs")]
)
def test_make_hands_the_store_on(given: tuple[str, ...], wanted: str) -> None:
    said = subprocess.run(["make", "-n", "demo", *given], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1].rstrip().endswith(f"-m {wanted}")


def test_the_figures_of_the_year_are_those_of_the_readme() -> None:
    figures = Figures.of_year(1)
    assert (figures.read, figures.landed, figures.poison) == (336_776, 327_346, 9_430)
    readme = (ROOT / "README.md").read_text()
    assert all(f"{number:,}" in readme for number in (figures.read, figures.landed, figures.poison))


def test_the_figures_of_a_sample_are_those_of_every_nth_flight() -> None:
    every = [Figures.of_year(number).read for number in (100, 336_776)]
    assert every == [3_368, 1]


def test_right_figures_are_no_fault_and_an_alert_that_is_told_twice_counts_once() -> None:
    assert FIGURES.faults(BOOKS, ALERTS) == []
    assert FIGURES.faults(BOOKS, [*ALERTS, *ALERTS, {"kind": "outage", "key": "b", "count": 9}]) == []


@pytest.mark.parametrize(
    ("figures", "books", "alerts", "said"),
    [
        (replace(FIGURES, read=11), BOOKS, ALERTS, ["flights read: 10, and the data has 11", "landed: 8, and the data has 9"]),
        (
            FIGURES,
            replace(BOOKS, now=Depth(retry=1, poison=1)),
            ALERTS,
            ["in poison: 1, and the data has 2", "in main and retry: 1, and the data has 0"],
        ),
        (FIGURES, BOOKS, [], ["of poison alerted: 0, and the data has 2"]),
    ],
)
def test_a_figure_that_differs_is_named_with_both_values(figures: Figures, books: Books, alerts: list[dict[str, object]], said: list[str]) -> None:
    assert figures.faults(books, alerts) == said


def fake_unshare(folder: Path) -> str:
    """Return a PATH where mounts of one's own are not permitted."""
    folder.mkdir()
    program = folder / "unshare"
    program.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
    program.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_where_no_mounts_are_permitted_the_demo_says_why_and_what_to_do_and_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", fake_unshare(tmp_path / "bin"))
    left = tmp_path / "demo" / "s3" / "airflow" / "airflow.db"
    left.parent.mkdir(parents=True)
    left.touch()

    assert main(["--store", "s3"], tmp_path / "demo") == 1

    said = capsys.readouterr().out
    assert "unshare --mount fails: unshare: unshare failed: Operation not permitted" in said
    assert "Run it as root on Linux" in said
    assert left.exists()


def test_where_there_is_no_unshare_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match="there is no program unshare"):
        check_mounts()


def test_a_demo_over_an_object_store_starts_afresh_and_keeps_what_marks_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.demo.lake.check_mounts", lambda: None)
    place = Place(tmp_path / "s3" / "airflow")
    with place.alone():
        marks = place.mark(), home_of_servers(place).mark()
        assert not start_afresh(place), "there was nothing"
        for path in (
            place.path / "airflow.db",
            place.logs / "scheduler.log",
            place.path / "tmp" / "copy",
            tmp_path / "s3" / "spark" / "node-1" / "x",
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

        assert start_afresh(place)

        assert (place.mark(), home_of_servers(place).mark()) == marks
        assert len(set(marks)) == 2, "the servers do not end with the Airflow"
    assert sorted(str(path.relative_to(tmp_path / "s3")) for path in (tmp_path / "s3").rglob("*")) == [
        "airflow",
        "airflow/keys.json",
        "airflow/lock",
        "airflow/logs",
        "spark",
        "spark/keys.json",
    ]


def test_the_tables_of_a_folder_need_no_connection_and_stay(tmp_path: Path) -> None:
    place = Place(tmp_path)
    lake = in_folder(place)
    assert (lake.queue, lake.landed, lake.goes) == (f"{tmp_path}/poison/flights", f"{tmp_path}/flights/landed", False)
    assert "AIRFLOW_CONN_POISON_DEFAULT" not in place.demo_environment(8080, 20, 1, lake.environment)
