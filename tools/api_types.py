"""The types of the page's API, made from the server's models: ``python -m tools.api_types`` writes them into the page's sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

TARGET = Path(__file__).parents[1] / "airflow_poison" / "ui" / "frontend" / "src" / "api" / "generated.ts"
HEAD = "/** Made by `make types` from airflow_poison/ui/shapes.py and posts.py: change these. */\n"
_NAMES = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean", "null": "null"}


def text() -> str:
    """Return the types of all answers and requests."""
    from pydantic.json_schema import models_json_schema

    from airflow_poison.ui.posts import REQUESTS
    from airflow_poison.ui.shapes import ANSWERS

    schemas: dict[str, Any] = models_json_schema([(each, "serialization") for each in {*ANSWERS.values()}])[1]["$defs"]
    schemas |= models_json_schema([(each, "validation") for each in {*REQUESTS.values()}])[1]["$defs"]
    requests = "".join(f"  readonly {name}: {each.__name__};\n" for name, each in sorted(REQUESTS.items()))
    declared = "".join(_declared(name, schema) for name, schema in sorted(schemas.items()))
    return f"{HEAD}{declared}\n/** The bodies of requests that act, by their paths. */\nexport interface Requests {{\n{requests}}}\n"


def _declared(name: str, schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return f"\nexport type {name} = {_type(schema)};\n"
    required = schema.get("required", [])
    fields = "".join(f"  readonly {field}{'' if field in required else '?'}: {_type(each)};\n" for field, each in schema["properties"].items())
    doc = " ".join(schema.get("description", "").split())
    return f"\n/** {doc} */\nexport interface {name} {{\n{fields}}}\n"


def _type(schema: Mapping[str, Any]) -> str:
    """Return the TypeScript of a JSON schema."""
    match schema:
        case {"$ref": str(name)}:
            found = name.rpartition("/")[2]
        case {"enum": [*values]}:
            found = " | ".join(map(json.dumps, values))
        case {"const": value}:
            found = json.dumps(value)
        case {"anyOf": [*others]}:
            found = " | ".join(dict.fromkeys(map(_type, others)))
        case {"type": "array", "items": items}:
            of = _type(items)
            found = f"readonly ({of})[]" if " | " in of else f"readonly {of}[]"
        case {"type": "object", "properties": _, "title": str(name)}:
            found = name
        case {"type": "object"}:
            key, value = schema.get("propertyNames", {"type": "string"}), schema.get("additionalProperties")
            found = f"Readonly<Record<{_type(key)}, {_type(value) if isinstance(value, dict) else 'unknown'}>>"
        case {"type": str(name)}:
            found = _NAMES[name]
        case _:
            found = "unknown"
    return found


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
    print(TARGET)
