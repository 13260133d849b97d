"""JSON Schema of the lines, made from the message types. protocol/schema/ holds the result."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from kcl_host.multilang.messages import ChildMessage, HostMessage

_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema_files() -> dict[str, str]:
    """File name -> content of every file in protocol/schema."""
    host = _document(HostMessage, "A line that the host writes to a child's stdin")
    for definition in host["$defs"].values():
        # The host leaves no key out, defaults or not, but those of an extension that is not switched on.
        definition["required"] = [name for name in definition["properties"] if not name.startswith("pending")]
    record = host["$defs"]["Record"]["properties"]
    record["action"] = {"enum": ["record"]}
    record["subSequenceNumber"].pop("default")
    child = _document(ChildMessage, "A line that a child writes to its stdout")
    return {"host-to-child.json": _text(host), "child-to-host.json": _text(child)}


def _document(message: Any, title: str) -> dict[str, Any]:
    return {"$schema": _DRAFT, "title": title, **msgspec.json.schema(message)}


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"
