"""Which key a typed name is, and what to say when it is none (spec configuration 1.2)."""

from __future__ import annotations

import difflib
from typing import Final

import msgspec

from kcl_host.config.keys import KEYS, Key

_CREDENTIALS: Final = "AwsCredentialsProvider"
_NESTED: Final = {f"{key.bean}.{key.name}": key for key in KEYS if key.bean}
_NAMES: Final = {key.name: key for key in KEYS} | _NESTED
_PER_STREAM: Final = sorted((key for key in KEYS if key.per_stream), key=lambda key: -len(key.name))
_FOLDED: Final = {name.casefold(): name for name in reversed(_NAMES)}
_GROUPS: Final = frozenset(name.partition(".")[0] for name in _NAMES if "." in name)
"""First parts of nested names."""
_STRICT_GROUPS: Final = frozenset(g for g in _GROUPS if g.endswith(("Client", "CredentialsProvider")))
"""Groups in which Java ends with an error for a name that it does not know."""


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """`key` None: the name is ignored, or refused when `fatal`; `problem` says why, `suggestion` what was meant."""

    key: Key | None = None
    stream: str = ""
    """The stream that the value is for; empty: for all."""
    nested: bool = False
    problem: str = ""
    suggestion: str | None = None
    fatal: bool = False


def match_name(typed: str) -> Match:
    """The key of a name. Case matters, save in the first part of the credentials keys."""
    name = typed
    if typed.casefold().startswith(_CREDENTIALS.casefold()):
        name = _CREDENTIALS + typed[len(_CREDENTIALS) :]
    if name in _NAMES:
        return Match(key=_NAMES[name], nested=name in _NESTED)
    for key in _PER_STREAM:
        if name.startswith(f"{key.name}.") and name != f"{key.name}.":
            return Match(key=key, stream=name[len(key.name) + 1 :])
    group, dot, rest = name.partition(".")
    if not dot and name in _GROUPS:
        members = ", ".join(sorted(n for n in _NAMES if n.startswith(f"{name}."))[:3])
        return Match(problem=f"{typed} is a group of keys and is ignored; set its members, for example {members}")
    base = name.partition("[")[0]
    if name.count("[") != name.count("]") or ("[" in name and base in _NAMES):
        return Match(problem=f"{typed} is not a key; remove the brackets", fatal=True)
    suggestion = nearest_name(name)
    if group in _STRICT_GROUPS and rest:
        known = ", ".join(sorted(n for n in _NAMES if n.startswith(f"{group}.")))
        return Match(problem=f"{typed} is not supported; known here: {known}", suggestion=suggestion, fatal=True)
    return Match(problem=f"unknown key {typed} is ignored{_hint(name, suggestion)}", suggestion=suggestion)


def nearest_name(name: str) -> str | None:
    """The known name that was probably meant, None when there is none close enough."""
    folded = name.casefold()
    close = [folded] if folded in _FOLDED else difflib.get_close_matches(folded, _FOLDED, n=1, cutoff=0.75)
    return _FOLDED[close[0]] if close else None


def _hint(name: str, suggestion: str | None) -> str:
    if suggestion is None:
        return "; no known key is similar"
    if suggestion.casefold() == name.casefold():
        return f"; keys are case-sensitive, write {suggestion}"
    return f"; did you mean {suggestion}?"
