"""``Files`` of a folder and of a bucket while files arrive, and two takers that race are killed: each line comes once."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.sources.files import Files
from tests.live.source_kills import killed, rows
from tools.servers import s3

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KILLS = 30


class Folder:
    """A folder into which files fall, written beside it and moved in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "landing").mkdir()
        self.pattern, self.options = f"{path}/landing/**/*.json", dict[str, str]()

    def put(self, name: str, content: bytes) -> None:
        place, written = self.path / "landing" / name, self.path / "written"
        place.parent.mkdir(exist_ok=True)
        written.write_bytes(content)
        written.rename(place)


class Bucket:
    """A bucket into which objects fall."""

    def __init__(self, options: dict[str, str]) -> None:
        s3.make_bucket(options, "landing")
        self.client: Any = s3.client_of(options)
        self.pattern, self.options = "s3://landing/**/*.json", options

    def put(self, name: str, content: bytes) -> None:
        self.client.put_object(Bucket="landing", Key=name, Body=content)


@pytest.fixture(params=["folder", "bucket"])
def landing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder | Bucket]:
    if request.param == "folder":
        yield Folder(tmp_path)
        return
    with s3.running() as port:
        yield Bucket(s3.options(f"http://{s3.LOOPBACK}:{port}"))


def test_two_takers_that_race_and_are_killed_take_each_line_once(landing: Folder | Bucket, tmp_path: Path) -> None:
    draw, expected = random.Random(17), Counter[tuple[bytes, bool]]()

    def arrive(number: int) -> None:
        for each in range(draw.choice([1, 4, 20])):
            lines = [b'{"id": "%d-%d-%d"}' % (number, each, line) for line in range(draw.choice([1, 30]))]
            broken = [b'{"id": "%d-%d-' % (number, each)] if draw.random() < 0.2 else []
            landing.put(f"{draw.choice('abc')}/{draw.random()}.json", b"\n".join([*lines, *broken, b""]))
            expected.update([(line, False) for line in lines] + [(line, True) for line in broken])

    source = Files(landing.pattern, name="landing", settled=timedelta(0), storage_options=landing.options)
    table = killed(tmp_path, source, arrive, kills=KILLS)
    found = Counter((row["body"], row["reason"] is not None) for row in rows(table))
    assert found == expected
