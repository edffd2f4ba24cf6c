"""What an output can hold: each type of Arrow, flat and nested, in tables with each feature, is refused before the claim or lands as it was."""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from airflow_poison.outputs import output_table
from airflow_poison.outputs.output import RowSchema, outputs_of, to_batch
from airflow_poison.passes.land import prepared
from airflow_poison.values.errors import OutputError, OutputRowError, SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AT = datetime(2024, 2, 29, 12, 30, 1, 123456, tzinfo=UTC)
FLAT: dict[str, tuple[pa.DataType, Any]] = {
    "bool": (pa.bool_(), True),
    "int8": (pa.int8(), -128),
    "int16": (pa.int16(), 2**15 - 1),
    "int32": (pa.int32(), -(2**31)),
    "int64": (pa.int64(), 2**63 - 1),
    "uint8": (pa.uint8(), 255),
    "uint16": (pa.uint16(), 2**16 - 1),
    "uint32": (pa.uint32(), 2**32 - 1),
    "float16": (pa.float16(), 0.5),
    "float32": (pa.float32(), 0.25),
    "float64": (pa.float64(), 0.1),
    "decimal": (pa.decimal128(38, 18), Decimal("-12345678901234567890.123456789012345678")),
    "decimal_flat": (pa.decimal128(9, 0), Decimal(999_999_999)),
    "string": (pa.string(), "h\u00e9 'q\" \n"),
    "large_string": (pa.large_string(), "x"),
    "binary": (pa.binary(), b"\x00\xff"),
    "large_binary": (pa.large_binary(), b"1"),
    "fixed_binary": (pa.binary(3), b"abc"),
    "date32": (pa.date32(), date(1969, 12, 31)),
    "date64": (pa.date64(), date(2024, 2, 29)),
    "instant": (pa.timestamp("us", "UTC"), AT),
    "instant_ms": (pa.timestamp("ms", "UTC"), AT.replace(microsecond=123000)),
    "instant_oslo": (pa.timestamp("us", "Europe/Oslo"), AT),
    "wall": (pa.timestamp("us"), AT.replace(tzinfo=None)),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), "x"),
}
NONE_OF_DELTA: dict[str, tuple[pa.DataType, Any]] = {
    "uint64": (pa.uint64(), 1),
    "time32": (pa.time32("ms"), time(1)),
    "time64": (pa.time64("us"), time(1)),
    "duration": (pa.duration("us"), timedelta(1)),
    "empty_struct": (pa.struct([]), {}),
    "decimal256": (pa.decimal256(50, 2), Decimal(1)),
    "months": (pa.month_day_nano_interval(), (1, 2, 3)),
}


def nested(kinds: dict[str, tuple[pa.DataType, Any]]) -> dict[str, tuple[pa.DataType, Any]]:
    found: dict[str, tuple[pa.DataType, Any]] = {}
    for name, (kind, value) in kinds.items():
        found[f"list_{name}"] = (pa.list_(kind), [value, None])
        found[f"struct_{name}"] = (pa.struct([("a", kind), ("b", pa.list_(kind))]), {"a": value, "b": [value]})
        found[f"map_{name}"] = (pa.map_(pa.string(), kind), [("k", value)])
    return found


@pytest.mark.parametrize("name", [*NONE_OF_DELTA, *nested(NONE_OF_DELTA), "map_wall"])
def test_a_type_that_delta_lacks_is_refused_where_it_is_declared(name: str, tmp_path: Path) -> None:
    kind, _ = (NONE_OF_DELTA | nested(NONE_OF_DELTA) | nested(FLAT))[name]

    with pytest.raises(SettingError, match="columns of types that a Delta table has"):
        outputs_of(tmp_path / "t", schema=pa.schema([("c", kind)]))


HELD = {name: each for name, each in (FLAT | nested(FLAT)).items() if name != "map_wall"}
FEATURES: dict[str, tuple[list[str], list[str], dict[str, str]]] = {
    "nothing": ([], [], {}),
    "check": ([], ["checkConstraints"], {"delta.constraints.c": "int32 < 0"}),
    "generated": ([], ["generatedColumns"], {}),
    "invariants": ([], ["invariants"], {}),
    "identity": ([], ["identityColumns"], {}),
    "append only": ([], ["appendOnly"], {"delta.appendOnly": "true"}),
    "change data feed": ([], ["changeDataFeed"], {"delta.enableChangeDataFeed": "true"}),
    "deletion vectors": (["deletionVectors"], ["deletionVectors"], {"delta.enableDeletionVectors": "true"}),
    "column mapping": (["columnMapping"], ["columnMapping"], {"delta.columnMapping.mode": "name"}),
    "row tracking": ([], ["rowTracking", "domainMetadata"], {"delta.enableRowTracking": "true"}),
    "domain metadata": ([], ["domainMetadata"], {}),
    "in-commit timestamps": ([], ["inCommitTimestamp"], {"delta.enableInCommitTimestamps": "true"}),
    "v2 checkpoints": (["v2Checkpoint"], ["v2Checkpoint"], {"delta.checkpointPolicy": "v2"}),
    "type widening": (["typeWidening"], ["typeWidening"], {"delta.enableTypeWidening": "true"}),
    "variant": (["variantType"], ["variantType"], {}),
    "clustering": ([], ["clustering", "domainMetadata"], {}),
    "vacuum protocol check": (["vacuumProtocolCheck"], ["vacuumProtocolCheck"], {}),
    "iceberg compatibility": ([], ["icebergCompatV2"], {"delta.enableIcebergCompatV2": "true"}),
    "allow column defaults": ([], ["allowColumnDefaults"], {}),
    "an unknown one": ([], ["shinyNew"], {}),
}
LANDS = {"nothing", "check", "column mapping", "invariants", "not null", "append only", "change data feed", "generated"}
"""Into tables with these rows must land; others may be refused."""
PARTITIONS = ("bool", "int8", "int32", "int64", "float64", "decimal", "string", "date32", "instant", "wall")


def a_table_of(out: Path, feature: str, partitions: tuple[str, ...] = ()) -> None:
    """Make an empty table with a column of each type, and a feature, by its log."""
    schema = pa.schema([(name, HELD[name][0]) for name in HELD])
    (declared,) = outputs_of(out, schema=schema)
    write_deltalake(str(out), pa.Table.from_pylist([], schema=declared.columns), partition_by=list(partitions) or None)
    entry = out / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    reads, writes, configuration = FEATURES[feature]
    for line in lines:
        if "protocol" in line:
            line["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["timestampNtz", *reads],
                "writerFeatures": ["timestampNtz", *writes],
            }
        if "metaData" in line:
            line["metaData"]["configuration"] |= configuration
            fields = json.loads(line["metaData"]["schemaString"])
            more = {
                "generated": {"delta.generationExpression": "int32 + 1"},
                "invariants": {"delta.invariants": json.dumps({"expression": {"expression": "extra IS NULL OR extra > 0"}})},
                "identity": {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": False},
                "allow column defaults": {"CURRENT_DEFAULT": "7"},
            }.get(feature)
            if more is not None:
                fields["fields"].append({"name": "extra", "type": "integer", "nullable": True, "metadata": more})
            if feature == "variant":
                fields["fields"].append({"name": "extra", "type": "variant", "nullable": True, "metadata": {}})
            if feature == "column mapping":
                for number, field in enumerate(fields_in(fields), 1):
                    field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
                    line["metaData"]["configuration"]["delta.columnMapping.maxColumnId"] = str(number)
            line["metaData"]["schemaString"] = json.dumps(fields)
    entry.write_text("\n".join(map(json.dumps, lines)))


def fields_in(kind: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields of a type of Delta, those in its structs among them."""
    if isinstance(kind, dict):
        for field in kind.get("fields", ()):
            yield field
            yield from fields_in(field["type"])
        for part in ("elementType", "keyType", "valueType"):
            yield from fields_in(kind.get(part))


@pytest.mark.parametrize("keys", [(), ("string", "instant")], ids=["appended", "merged"])
@pytest.mark.parametrize("feature", [*FEATURES, "partitions"])
def test_a_row_with_each_type_is_refused_before_the_claim_or_lands(tmp_path: Path, feature: str, keys: tuple[str, ...]) -> None:
    out = tmp_path / "t"
    a_table_of(out, "nothing" if feature == "partitions" else feature, PARTITIONS if feature == "partitions" else ())
    must_land = feature in LANDS and not (keys and feature in {"append only", "generated"})
    with nullcontext() if must_land else suppress(OutputError):
        lands(out, feature, keys)


def lands(out: Path, feature: str, keys: tuple[str, ...]) -> None:
    """Land a row with a value of each type, and one with almost none; only what is said before the claim is an OutputError here."""
    (output,) = prepared(outputs_of(out, keys=keys))
    row = {name: value for name, (_, value) in HELD.items()}
    if feature == "partitions":
        with pytest.raises(OutputRowError, match="no decimal below 0 with a fraction"):
            RowSchema(output, None).rows([row])
        row["decimal"] = -row["decimal"]

    kept = RowSchema(output, None).rows([row, dict.fromkeys(row) | {"int32": -1}])
    assert output.columns is not None
    try:
        output_table.land(output, [to_batch(kept, output.columns)], "test", 1, "key")
    except OutputError as error:
        pytest.fail(f"it settles, and then it cannot land: {error}")

    columns = ", ".join(f'"{name}"' for name in HELD)
    found = pa.table(QueryBuilder().register("t", DeltaTable(str(out))).execute(f'SELECT {columns} FROM t ORDER BY "bool" NULLS LAST').read_all())
    landed, empty = ({name: value for name, value in each.items() if name in HELD} for each in found.to_pylist())
    assert landed == row
    assert {name for name, value in empty.items() if value is not None} == {"int32"}
