"""Lineage: what a task has read and written, for OpenLineage and collectors of Airflow's hook lineage. Without them it costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import pyarrow as pa
    from airflow.providers.common.compat.openlineage.facet import Dataset
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Asset
    from pyspark.sql import DataFrame

    Columns = Callable[[], pa.Schema | None]

MOST_SOURCES = 20
"""At most so many folders of a DataFrame's files are reported."""
SCHEME = "poison"
_DATABASES = frozenset({"postgres", "mysql"})
"""Their tables are ``database.schema.table`` to OpenLineage."""


def queue_uri(conn_id: str, queue: str) -> str:
    """Return the URI of a queue; its asset has the same."""
    return f"{SCHEME}://{conn_id}/{queue}"


def path_uri(path: str) -> str:
    """Return the URI of a path that Spark reads."""
    return path if "://" in path else f"file://{Path(path).absolute()}"


@dataclass(slots=True)
class Lineage:
    """The URIs that a task has read and written, each once, in order.

    :param tables: where the tables of queues lie, by URI: other tools know them by that.
    :param columns: functions that return the columns of a table, by URI.
    """

    inputs: dict[str, None] = field(default_factory=dict)
    outputs: dict[str, None] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    columns: dict[str, Columns] = field(default_factory=dict)

    def reads(self, context: object, *uris: str) -> None:
        """Note what was read, also in the hook lineage.

        :param context: the hook or operator that did.
        """
        collector = _collector()
        for uri in filter(None, uris):
            self.inputs[uri] = None
            collector.add_input_asset(context=context, uri=uri)

    def writes(self, context: object, *uris: str) -> None:
        """Note what was written, also in the hook lineage."""
        collector = _collector()
        for uri in filter(None, uris):
            self.outputs[uri] = None
            collector.add_output_asset(context=context, uri=uri)

    def facets(self) -> OperatorLineage[Any, Any]:
        """Return this as OpenLineage has it. Only its provider asks."""
        from airflow.providers.openlineage.extractors import OperatorLineage

        inputs, outputs = ([dataset(uri, self.tables.get(uri), self.columns.get(uri)) for uri in uris] for uris in (self.inputs, self.outputs))
        return OperatorLineage(inputs=inputs, outputs=outputs)


class WithLineage:
    """What an operator that notes its lineage has in common with the others.

    :ivar lineage: noted while the task runs.
    """

    lineage: Lineage

    def get_openlineage_facets_on_complete(self, task_instance: object) -> OperatorLineage[Any, Any]:  # noqa: ARG002  (OpenLineage's signature)
        """Return what the task has read and written; OpenLineage's provider calls it when the task has ended, however it did."""
        return self.lineage.facets()


def dataset(uri: str, table: str | None = None, columns: Columns | None = None) -> Dataset:
    """Return a URI as OpenLineage names it: ``poison://<conn_id>`` and the queue; for files ``file`` or the bucket, and the path; server and table.

    :param table: where the queue's table lies, reported beside its name.
    :param columns: returns the columns to report.
    """
    from airflow.providers.common.compat.openlineage.facet import Dataset, Identifier, SymlinksDatasetFacet

    parts = urlsplit(uri)
    facets: dict[str, Any] = {} if columns is None else {"schema": _schema_of(columns)}
    if parts.scheme == "file":
        return Dataset(namespace="file", name=parts.path, facets=facets)
    if table is not None:
        facets["symlinks"] = SymlinksDatasetFacet(identifiers=[Identifier(namespace="file", name=table, type="TABLE")])
    name = parts.path.strip("/") or "/"
    return Dataset(namespace=f"{parts.scheme}://{parts.netloc}", name=name.replace("/", ".") if parts.scheme in _DATABASES else name, facets=facets)


def _schema_of(columns: Columns) -> Any:
    from airflow.providers.common.compat.openlineage.facet import SchemaDatasetFacet, SchemaDatasetFacetFields

    from airflow_poison.values.ddl import ddl_type

    return SchemaDatasetFacet(fields=[SchemaDatasetFacetFields(name=field.name, type=ddl_type(field.type)) for field in columns() or ()])


def convert_asset_to_openlineage(asset: Asset, lineage_context: object) -> Dataset:  # noqa: ARG001  (Airflow's signature)
    """Return the dataset of an asset of scheme ``poison``, whatever happenings of the queue it stands for."""
    return dataset(asset.uri)


def sources_of(frame: DataFrame) -> list[str]:
    """Return the URIs of the folders that a DataFrame's files lie in, when OpenLineage listens; finding them takes Spark a moment."""
    if not _openlineage_listens():
        return []
    try:
        files = frame.inputFiles()
    except Exception:  # noqa: BLE001  (the rows are sent also where the plan of a frame cannot be read)
        return []
    return list(dict.fromkeys(path_uri(_folder(file)) for file in files))[:MOST_SOURCES]


def _folder(file: str) -> str:
    head, slash, _ = file.rpartition("/")
    where = head if slash else file
    return where.replace("file:///", "/", 1) if where.startswith("file:///") else where


def _openlineage_listens() -> bool:
    try:
        from airflow.providers.openlineage.conf import is_disabled
    except ImportError:
        return False
    return not is_disabled()


def _collector() -> Any:
    from airflow.providers.common.compat.sdk import get_hook_lineage_collector

    return get_hook_lineage_collector()
