"""Columns of files that a transform wrote before and after it was changed."""

from __future__ import annotations

import json

import pytest

from kcl_host.spark.schema import merge_schemas, schema_name


def schema(**columns: object) -> str:
    fields = [{"name": n, "type": t, "nullable": False, "metadata": {}} for n, t in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


def merged(*schemas: str) -> dict[str, object]:
    fields = json.loads(merge_schemas(schemas))["fields"]
    assert all(field["nullable"] for field in fields)
    return {field["name"]: field["type"] for field in fields}


def test_columns_come_and_go() -> None:
    assert list(merged(schema(a="long", b="string"), schema(a="long", c="date"))) == ["a", "b", "c"]


@pytest.mark.parametrize(("one", "other", "both"), [("integer", "long", "long"), ("double", "float", "double")])
def test_the_wider_number(one: str, other: str, both: str) -> None:
    assert merged(schema(a=one), schema(a=other)) == {"a": both}


def test_inside_a_struct() -> None:
    one, other = json.loads(schema(x="integer")), json.loads(schema(x="long", y="string"))
    inner = merged(schema(a=one), schema(a=other))["a"]
    assert isinstance(inner, dict)
    assert [(f["name"], f["type"]) for f in inner["fields"]] == [("x", "long"), ("y", "string")]


@pytest.mark.parametrize(("one", "other"), [("string", "long"), ("long", "timestamp"), ({"type": "array"}, "long")])
def test_what_does_not_go_together_is_named(one: object, other: object) -> None:
    with pytest.raises(ValueError, match="column 'a'"):
        merged(schema(a=one), schema(a=other))


def test_a_name_is_short_and_its_own() -> None:
    assert schema_name(schema(a="long")) == schema_name(schema(a="long")) != schema_name(schema(b="long"))
