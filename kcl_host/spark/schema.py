"""Columns' types as Spark's JSON: one table's files may differ, since transforms change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Final

_WIDER: Final = {
    ("integer", "long"), ("short", "integer"), ("short", "long"), ("byte", "short"), ("byte", "integer"),
    ("byte", "long"), ("float", "double"), ("integer", "double"), ("short", "double"), ("byte", "double"),
}  # fmt: skip
"""(from, to): what Spark reads as a wider type straight from the file."""
_ARROW: Final = {
    "int8": "byte", "int16": "short", "int32": "integer", "int64": "long", "float": "float", "double": "double",
    "bool": "boolean", "string": "string", "large_string": "string", "binary": "binary", "large_binary": "binary",
    "date32[day]": "date",
}  # fmt: skip


def schema_name(schema: str) -> str:
    """Short and the same for the same text."""
    return hashlib.sha256(schema.encode()).hexdigest()[:12]


def merge_schemas(schemas: Iterable[str]) -> str:
    """All columns of all, nullable, in order of the first that has them; of two number types the wider.

    Raises ValueError when a column has types that no reader can bring together.
    """
    columns: dict[str, dict[str, Any]] = {}
    for schema in schemas:
        for column in json.loads(schema)["fields"]:
            column = {**column, "nullable": True}
            known = columns.setdefault(column["name"], column)
            if known["type"] != column["type"]:
                columns[column["name"]] = _wider(known, column)
    return json.dumps({"type": "struct", "fields": list(columns.values())})


def of_arrow(schema: Any) -> str:
    """Spark's words for an Arrow schema of plain types. Raises ValueError for others."""
    fields = []
    for field in schema:
        name = "timestamp" if str(field.type).startswith("timestamp[") else _ARROW.get(str(field.type))
        if name is None:
            raise ValueError(f"column {field.name!r}: no Spark type for Arrow's {field.type}")
        fields.append({"name": field.name, "type": name, "nullable": True, "metadata": {}})
    return json.dumps({"type": "struct", "fields": fields})


def _wider(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    a, b = one["type"], other["type"]
    if isinstance(a, str) and isinstance(b, str):
        if (a, b) in _WIDER:
            return other
        if (b, a) in _WIDER:
            return one
    elif isinstance(a, dict) and isinstance(b, dict) and a["type"] == b["type"] == "struct":
        return {**one, "type": json.loads(merge_schemas([json.dumps(a), json.dumps(b)]))}
    raise ValueError(f"column {one['name']!r} is {a} in some files and {b} in others; read_committed needs a schema")
