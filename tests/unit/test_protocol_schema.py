"""protocol/schema is what the message types say. KCL_HOST_REWRITE=1 writes it anew."""

from __future__ import annotations

import json
import os
from pathlib import Path

from kcl_host.multilang.schema import schema_files

FOLDER = Path(__file__).parents[2] / "protocol" / "schema"


def test_the_files_are_those_of_the_messages() -> None:
    files = schema_files()
    if os.environ.get("KCL_HOST_REWRITE"):
        for name, text in files.items():
            (FOLDER / name).write_text(text, "utf-8")
    assert {p.name: p.read_text("utf-8") for p in FOLDER.iterdir()} == files


def test_the_host_leaves_no_key_out() -> None:
    definitions = json.loads(schema_files()["host-to-child.json"])["$defs"]
    extension = {"Initialize": [f"pendingCheckpoint{of}" for of in ("SequenceNumber", "SubSequenceNumber", "State")]}
    for name, definition in definitions.items():
        assert definition["required"] + extension.get(name, []) == list(definition["properties"])
    assert list(definitions["Record"]["properties"])[-1] == "action"
    assert next(iter(definitions["CheckpointAnswer"]["properties"])) == "action"


def test_a_child_may_leave_out_the_numbers_of_a_checkpoint() -> None:
    definitions = json.loads(schema_files()["child-to-host.json"])["$defs"]
    assert definitions["CheckpointRequest"]["required"] == ["action"]
    assert definitions["PrepareCheckpointRequest"]["required"] == ["action"]
    assert definitions["Status"]["required"] == ["action", "responseFor"]
