"""Who may import whom (kcl_host/DESIGN.md section 2), as data."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kcl_host"

# folder -> the folders or top modules of kcl_host it may import
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "model": {"errors"},
    "config": {"errors", "model"},
    "ports": {"errors", "model", "config"},
    "instruments": {"errors", "model"},
    "log": {"errors", "model", "config"},
    "multilang": {"errors", "model"},
    "decisions": {"errors", "model", "config"},
    "aws": {"errors", "model", "config"},
    "child": {"errors", "model", "config", "ports"},
    "observe": {"errors", "model", "config", "ports", "instruments"},
    "coordination": {"errors", "model", "config", "ports", "decisions", "instruments"},
    "retrieval": {"errors", "model", "config", "ports", "decisions"},
    "runtime": {
        "errors", "model", "config", "ports", "decisions", "log", "instruments",
        "multilang", "aws", "child", "observe", "coordination", "retrieval",
    },
    "endpoint": {
        "errors", "model", "config", "ports", "decisions", "log", "observe", "coordination", "runtime",
    },
    "local": {"errors", "model"},
    "processor": set(),
    "spark": {"processor"},
}  # fmt: skip

# third-party or standard module -> the only folders that may import it
ONLY_IN: dict[str, set[str]] = {
    "boto3": {"aws", "local", "cli", "spark"},
    "botocore": {"aws", "local", "cli", "spark"},
    "subprocess": {"child", "cli", "spark"},
    "pyspark": {"spark"},
    "pyarrow": {"spark"},
    "grpc": {"spark"},
    "psutil": {"observe"},
    "click": {"cli"},
    "rich": {"cli"},
    "moto": {"local"},
    "h2": {"aws", "local"},
    "flask": {"local"},
}

PURE = {"decisions", "multilang", "model"}
IMPURE = {
    "time", "random", "os", "socket", "threading", "logging", "subprocess", "select", "datetime", "uuid",
    "asyncio", "concurrent", "queue", "signal", "secrets", "pathlib",
}  # fmt: skip
# Pure too, although they live where a child does its work.
PURE_MODULES = {"spark/position.py", "spark/chain.py", "spark/batch.py", "spark/schema.py"}


def _part(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def _imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.append(node.module or "")
    return names


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_what_it_may(path: Path) -> None:
    part = _part(path)
    for name in _imports(path):
        top, _, rest = name.partition(".")
        if top == "kcl_host" and part in ALLOWED:
            target = rest.partition(".")[0]
            assert target in ALLOWED[part] | {part, ""}, f"{part} must not import {name}"
        if top in ONLY_IN:
            assert part in ONLY_IN[top], f"{top} is imported only in {sorted(ONLY_IN[top])}"
        if part in PURE or path.relative_to(PACKAGE).as_posix() in PURE_MODULES:
            assert top not in IMPURE, f"{part} is pure: {name}"
        if part == "processor":
            assert top in sys.stdlib_module_names | {"kcl_host"}, f"a child must start fast: {name}"


def test_every_folder_is_in_the_table() -> None:
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir() and any(p.glob("*.py"))}
    assert folders - set(ALLOWED) <= {"cli"}
