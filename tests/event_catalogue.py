"""Every event of the log, found in the source; `python -m tests.event_catalogue` writes docs/events.md anew.

Name, levels, modules and messages come from the calls themselves. What an event means is written in docs/events.md and
nowhere else: it is kept when the file is written again, and test_events.py wants one for each.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "kcl_host"
DOCUMENT: Final = ROOT / "docs" / "events.md"
NOT_OF_THE_HOST: Final = ("processor", "spark", "local", "model")
"""They run in children, or are no part of a host; an `action` of theirs is a kind of message."""
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
SAYERS: Final = ("_say", "say", "_tell")
"""Functions that pass level, message and action on to the log."""
ALTERNATIVES: Final = {"kind": "_MESSAGES", "failure": "_MESSAGES"}
"""Names in f-strings, and the mapping of the module whose keys they may be."""
_SIGNS: Final = ('"action"', "say(", "_tell(")
START, END = "<!-- events -->", "<!-- end of events -->"


class Said(NamedTuple):
    action: str
    level: str
    message: str
    module: str


@functools.cache
def events() -> dict[str, list[Said]]:
    """By name. Raises ValueError for a call that this cannot read: nothing is left out in silence."""
    found: defaultdict[str, list[Said]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).with_suffix("")
        text = path.read_text()
        if module.parts[0] not in NOT_OF_THE_HOST and any(word in text for word in _SIGNS):
            for said in _Module(ast.parse(text), ".".join(module.parts)).said():
                found[said.action].append(said)
    return dict(sorted(found.items()))


class _Module:
    def __init__(self, tree: ast.Module, name: str) -> None:
        self.tree, self.name = tree, name
        self.keys = {
            target.id: [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            for node in ast.walk(tree)
            for target in [node.target if isinstance(node, ast.AnnAssign) else None]
            if isinstance(node, ast.AnnAssign) and isinstance(target, ast.Name) and isinstance(node.value, ast.Dict)
        }

    def said(self) -> Iterator[Said]:
        for function in ast.walk(self.tree):
            if isinstance(function, ast.FunctionDef):
                yield from self._of_function(function)

    def _of_function(self, function: ast.FunctionDef) -> Iterator[Said]:
        nodes = list(_own_nodes(function))
        assigned = [
            (node.lineno, target.id, node.value)
            for node in nodes
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name) and isinstance(node.value, ast.Dict)
        ]
        read: set[int] = set()
        for call in nodes:
            if not isinstance(call, ast.Call):
                continue
            dicts = {name: value for line, name, value in sorted(assigned, key=lambda a: a[0]) if line < call.lineno}
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            extra = next((k.value for k in call.keywords if k.arg == "extra"), None)
            if name in SAYERS and len(call.args) > 2 and not isinstance(call.args[2], ast.Name):
                level, message, action = call.args[:3]
            elif name == "tell" and len(call.args) == 4:  # of an answer of Kinesis
                level, message, action = ast.Constant("DEBUG"), call.args[2], call.args[3]
            elif extra is not None and (found := self._action(extra, dicts, read)) is not None:
                by_level = name == "log"
                level = call.args[0] if by_level else ast.Constant(name.upper().replace("EXCEPTION", "ERROR"))
                message, action = call.args[1 if by_level else 0], found
            elif name == "_failed" and len(call.args) == 3:  # of a checkpoint
                level, message, action = ast.Constant("WARNING"), call.args[0], call.args[1]
            else:
                continue
            parameters = {argument.arg for argument in function.args.args}
            if isinstance(action, ast.Name) and action.id in parameters:
                continue  # It passes on what others say.
            for text in self._texts(action):
                yield Said(text, self._level(level), self._message(message, text), self.name)
        for node in nodes:
            if isinstance(node, ast.Dict) and _action_of(node) is not None and id(node) not in read:
                raise ValueError(f"{self.name}:{node.lineno}: which event this is cannot be told")

    def _action(self, extra: ast.expr, dicts: Mapping[str, ast.Dict], read: set[int]) -> ast.expr | None:
        if isinstance(extra, ast.Name):
            extra = dicts.get(extra.id, extra)
        if isinstance(extra, ast.BinOp):  # one | other
            return self._action(extra.left, dicts, read) or self._action(extra.right, dicts, read)
        if not isinstance(extra, ast.Dict):
            return None
        read.add(id(extra))
        own = _action_of(extra)
        if own is not None:
            return own
        unpacked = [value for key, value in zip(extra.keys, extra.values, strict=True) if key is None]
        return next((found for one in unpacked if (found := self._action(one, dicts, read)) is not None), None)

    def _texts(self, action: ast.expr) -> list[str]:
        """The names that an expression may come to."""
        if isinstance(action, ast.Constant):
            return [str(action.value)]
        if isinstance(action, ast.IfExp):
            return [*self._texts(action.body), *self._texts(action.orelse)]
        if isinstance(action, ast.JoinedStr):
            prefix, variable = action.values
            assert isinstance(prefix, ast.Constant) and isinstance(variable, ast.FormattedValue)
            if isinstance(variable.value, ast.Name) and (
                table := self.keys.get(ALTERNATIVES.get(variable.value.id, ""))
            ):
                return [f"{prefix.value}{key}" for key in table]
            if isinstance(variable.value, ast.Attribute) and (found := _class_attributes(variable.value.attr)):
                return [f"{prefix.value}{one}" for one in found]
            return [f"{prefix.value}…"]
        raise ValueError(f"{self.name}:{action.lineno}: {ast.unparse(action)} is no name of an event")

    def _level(self, level: ast.expr) -> str:
        if isinstance(level, ast.Constant):
            return str(level.value)
        if isinstance(level, ast.Attribute):
            return level.attr
        return "varies"

    def _message(self, message: ast.expr, action: str) -> str:
        if isinstance(message, ast.Constant):
            return str(message.value)
        if isinstance(message, ast.Subscript) and isinstance(message.value, ast.Name):
            for node in ast.walk(self.tree):
                if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == message.value.id:
                    assert isinstance(node.value, ast.Dict)
                    messages = {
                        ast.literal_eval(k): v for k, v in zip(node.value.keys, node.value.values, strict=True) if k
                    }
                    key = max((key for key in messages if action.endswith(key)), key=len)
                    return str(ast.literal_eval(messages[key]))
        if isinstance(message, ast.IfExp):
            return f"{self._message(message.body, action)}; {self._message(message.orelse, action)}"
        return "(what it is about)"


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Without those of functions inside."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from _own_nodes(child)


def _class_attributes(name: str) -> list[str]:
    """The texts that classes of the package give an attribute of this name."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        found |= set(re.findall(rf'^    {name} = "(\w+)"$', path.read_text(), re.M))
    return sorted(found)


def _action_of(node: ast.Dict) -> ast.expr | None:
    return next(
        (v for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant) and k.value == "action"),
        None,
    )


def meanings(text: str) -> dict[str, str]:
    """What the document says of each event; the last cell of its row."""
    table = text[text.index(START) : text.index(END)]
    rows = re.findall(r"^\| `(\S+)` \|.*\| ([^|]*) \|$", table, re.M)
    return {action: meaning.strip() for action, meaning in rows}


def table(found: Mapping[str, list[Said]], known: Mapping[str, str]) -> str:
    lines = ["| event | level | module | message | what it means |", "| --- | --- | --- | --- | --- |"]
    for action, all_said in found.items():
        levels = sorted({said.level for said in all_said}, key=lambda level: (*LEVELS, "varies").index(level))
        modules = sorted({said.module for said in all_said})
        messages = list(dict.fromkeys(said.message.replace("|", "/") for said in all_said))
        cells = (f"`{action}`", ", ".join(levels), ", ".join(modules), "; ".join(messages), known.get(action, ""))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def document(text: str) -> str:
    """`text` with the table as the source is now, its meanings kept."""
    before, rest = text.split(START)
    after = rest.split(END)[1]
    return f"{before}{START}\n\n{table(events(), meanings(text))}\n\n{END}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text()))
