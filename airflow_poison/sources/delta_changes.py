"""``DeltaChanges``: what is added to a Delta table, or its change data feed, version by version."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from airflow_poison.sources.source import Reached, Source, Take
from airflow_poison.values.errors import InputError, SettingError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from airflow_poison.sources.decoding import Schema
    from airflow_poison.sources.delta_versions import DataFile, Version, Versions
    from airflow_poison.sources.source import JsonValue, Position

LATEST = "latest"


class _Place(NamedTuple):
    """The first thing that was not taken.

    :param files: of the version that were taken.
    :param snapshot: the version is taken as the table was then, with all rows.
    """

    version: int
    files: int = 0
    snapshot: bool = False


@dataclass(frozen=True)
class DeltaChanges(Source):
    """Rows that are added to a Delta table, each once: first the rows that are there, then the rows of each version. OPTIMIZE adds none.

    A version that changes or removes rows (update, delete, merge, overwrite) is an error, unless it is left out or ``changes`` are taken.

    :param uri: of the table: an absolute path, or the address in an object store.
    :param start: where the first take begins. None: with all rows of the newest version; a version; ``latest``: with what comes from then on.
    :param changes: take the change data feed: each row has ``_change_type`` (insert, update_preimage, update_postimage, delete), ``_commit_version``
        and ``_commit_timestamp``. The table has to have ``delta.enableChangeDataFeed=true`` in all versions that are taken.
    :param skip_change_commits: leave out versions that change or remove rows, as a whole: rows that such a version adds are not taken.
    :param name: what the position is kept under. None: the address.
    :param schema: what each body is checked against or decoded with.
    :param storage_options: for an object store, as Delta Lake names them; others come from the environment.
    """

    uri: str
    start: int | str | None = None
    changes: bool = False
    skip_change_commits: bool = False
    name: str = ""
    schema: Schema | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    columns = True

    def __post_init__(self) -> None:
        if not isinstance(self.uri, str) or not ("://" in self.uri or self.uri.startswith("/")):
            raise SettingError("uri", self.uri, "the absolute path of a Delta table, since tasks run in folders of their own; or its address s3://…")
        whole = isinstance(self.start, int) and not isinstance(self.start, bool) and self.start >= 0
        if not (self.start is None or self.start == LATEST or whole):
            raise SettingError("start", self.start, f"a version from 0 on, {LATEST!r}, or None for all rows that there are")
        if self.changes and self.skip_change_commits:
            raise SettingError("skip_change_commits", self.skip_change_commits, "False with changes=True, which takes what these versions change")
        object.__setattr__(self, "name", self.name or self.uri)

    @property
    def asset_uri(self) -> str:
        """The table's address."""
        return self.uri if "://" in self.uri else f"file://{self.uri}"

    def plan(self, position: Position, *, limit: int | None) -> Take | None:
        """Return the versions behind a position. Raises SourceError for a table that is another one now, and for versions that are gone."""
        versions = self._versions()
        place = self._place(versions, position.at)
        if place.snapshot:
            return self._taken(versions, place, place.version, limit) if versions.snapshot(place.version).added[place.files :] else None
        if place.version > versions.last and position.at:
            return None
        return self._taken(versions, place, versions.last, limit)

    def between(self, start: str, end: str) -> Take:
        """Return what versions did.

        :param start: the first version; ``end`` is excluded.
        """
        versions = self._versions()
        first, after = (_version(text) for text in (start, end))
        if not 0 <= first < after <= versions.last + 1:
            raise InputError(
                f"Versions {start} to {end} cannot be taken from the Delta table {self.uri}: expected two of 0 to {versions.last + 1}, the second "
                "one above the first, which is excluded. Nothing was sent."
            )
        return self._taken(versions, _Place(first), after - 1, None)

    def describe(self, at: Mapping[str, JsonValue]) -> str:
        """Return the last version that was taken."""
        if not at:
            return "the beginning"
        place = _place(at)
        if place.files:
            return f"version {place.version}, {place.files} of its files"
        return f"version {place.version - 1}"

    # How far ----------------------------------------------------------------------------------------------------------

    def _versions(self) -> Versions:
        from airflow_poison.sources.delta_versions import Versions

        return Versions(self.uri, self.storage_options)

    def _place(self, versions: Versions, at: Mapping[str, JsonValue]) -> _Place:
        if not at:
            if self.start is None:
                return _Place(versions.last, snapshot=True)
            first = versions.last + 1 if self.start == LATEST else int(self.start)
            if first > versions.last + 1:
                raise SourceError(f"start={first}: the Delta table {self.uri} has versions up to {versions.last}. Nothing was sent.")
            return _Place(first)
        place = _place(at)
        if place.files and not place.snapshot and self.changes:
            raise SourceError(
                f"changes=True: source {self.name!r} has taken {place.files} files of version {place.version} without it. Take the rest of this "
                "version with changes=False first, or give the source another name=. Nothing was sent."
            )
        if at["table"] != versions.table_id:
            raise SourceError(
                f"The Delta table {self.uri} was made anew: its id is {versions.table_id}, and up to version {place.version - 1} another one was "
                f"taken ({at['table']}). Reset the position of source {self.name!r} to take the new table from its beginning. Nothing was sent."
            )
        if place.version > versions.last + 1:
            raise SourceError(
                f"The Delta table {self.uri} has versions up to {versions.last}, and it was taken up to version {place.version - 1}: an older state "
                "was put "
                f"back in its place. Reset the position of source {self.name!r}, and declare start= with the first version that was not taken. "
                "Nothing was sent."
            )
        return place

    def _taken(self, versions: Versions, begin: _Place, last: int, limit: int | None) -> Take:
        reached = [begin]

        def batches() -> Iterator[pa.RecordBatch]:
            place, sent = begin, 0
            for version, files in self._wanted(versions, begin, last):
                for number, file in enumerate(files):
                    if number < place.files:
                        continue
                    for batch in versions.rows(version, file, changes=self.changes):
                        sent += batch.num_rows
                        yield batch
                    if limit is not None and sent >= limit and number + 1 < len(files) and (begin.snapshot or not self.changes):
                        reached.append(place._replace(files=number + 1))
                        return
                place = _Place(version.number + 1)
                reached.append(place)
                if limit is not None and sent >= limit:
                    return

        def at() -> Reached:
            place = reached[-1]
            return Reached({"table": versions.table_id, "version": place.version, "files": place.files, "snapshot": place.snapshot})

        return Take(what=f"{_told(begin, last)} of {self.uri}", batches=batches, reached=at)

    def _wanted(self, versions: Versions, begin: _Place, last: int) -> Iterator[tuple[Version, tuple[DataFile, ...]]]:
        """Yield versions with the files whose rows are taken."""
        if begin.snapshot:
            whole = versions.snapshot(begin.version)
            yield whole, whole.added
            return
        feed: bool | None = None
        for number in range(begin.version, last + 1):
            version = versions.read(number)
            if self.changes:
                feed = version.feed if version.feed is not None else versions.has_feed(number) if feed is None else feed
                if not feed:
                    raise SourceError(
                        f"Version {number} of the Delta table {self.uri} was written without a change data feed. Set "
                        "delta.enableChangeDataFeed=true, reset "
                        f"the position of source {self.name!r}, and declare start= with a version from then on. Nothing was sent."
                    )
                yield version, version.changes or (*version.removed, *version.added)
            elif not version.removed:
                yield version, version.added
            elif self.skip_change_commits:
                yield version, ()
            else:
                raise SourceError(
                    f"Version {number} of the Delta table {self.uri} changes or removes rows ({version.operation}), and source {self.name!r} takes "
                    "rows that are added. Take all changes: changes=True, where delta.enableChangeDataFeed=true; or leave such versions out, with "
                    "the rows that they add: skip_change_commits=True. Nothing was sent."
                )


def _place(at: Mapping[str, JsonValue]) -> _Place:
    return _Place(int(at["version"]), int(at["files"]), bool(at["snapshot"]))  # type: ignore[arg-type]  # our own values


def _told(begin: _Place, last: int) -> str:
    if begin.snapshot:
        return f"all rows of version {begin.version}"
    if begin.version > last:
        return f"the newest version, {last},"
    return f"version {last}" if begin.version == last else f"versions {begin.version} to {last}"


def _version(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InputError(f"{text!r} is no version of a Delta table; expected a whole number from 0 on. Nothing was sent.") from error
