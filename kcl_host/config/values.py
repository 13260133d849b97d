"""Text of a value -> typed value, with Java's leniency made visible (spec configuration 1.3 and 1.4)."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from kcl_host.config.keys import Key

_TRUE: Final = frozenset({"true", "yes", "y", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "n", "off", "0"})
_BITS: Final = {"int": 31, "long": 63}
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_DOUBLE: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[dDfF]?|\+?Infinity")
_DURATION: Final = re.compile(
    r"P(?:([+-]?\d{1,15})D)?(?:(T)(?:([+-]?\d{1,15})H)?(?:([+-]?\d{1,15})M)?(?:([+-]?\d{1,15}(?:[.,]\d{0,9})?)S)?)?",
    re.IGNORECASE | re.ASCII,
)
_LIST_ITEM: Final = re.compile(r"\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9.\-]+)")


class Converted(msgspec.Struct, frozen=True, kw_only=True):
    """What a text means for its key.

    `value` None: the key counts as not given, the default applies. `problem` says what is wrong with the text and
    what happens; `fatal` when a run is impossible with it. `is_set` is Java's view of the bean field: conversion gave
    something else than the default of the Java type.
    """

    value: Any = None
    problem: str = ""
    fatal: bool = False
    is_set: bool = True


def convert(key: Key, text: str) -> Converted:
    """The value of `key` when the file says `text` (already trimmed). Never raises."""
    match key.kind:
        case "int" | "long" | "double":
            return _number(key, text)
        case "boolean":
            return _boolean(key, text)
        case "enum":
            return _enum(key, text)
        case "duration":
            return _duration(text)
        case "uri":
            return _uri(text)
        case "tags":
            return _tags(text)
        case "list":
            return _choices(key, text) if key.choices else Converted(value=_items(text))
        case "names":
            return Converted(value=tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(","))))))
        case "epoch seconds":
            return _epoch_seconds(text)
        case "region" if not text:
            return Converted(problem="is empty; name a region such as eu-west-1 or remove the line", fatal=True)
    if not text:
        return Converted(problem="is empty and counts as not set", is_set=False)
    return Converted(value=text)


def _number(key: Key, text: str) -> Converted:
    number = _parse_double(text) if key.kind == "double" else _parse_integer(text, _BITS[key.kind])
    stays = f"the default {key.default} is used" if key.default else "it counts as not set"
    always = key.fatal == "always"
    if number is None:
        noun = "a number" if key.kind == "double" else "an integer"
        return Converted(
            problem=f"= {text!r} is not {noun}" + ("" if always else f"; {stays}"),
            fatal=always,
            is_set=not key.primitive,
        )
    if number == 0 and key.primitive and key.fatal != "always":
        problem = "" if key.default in ("0", None) else f"= 0 means 'not set' in KCL; {stays}"
        return Converted(problem=problem, is_set=False)
    if number < key.minimum or (key.maximum is not None and number > key.maximum):
        fatal = bool(key.fatal)
        allowed = f"at least {key.minimum:g}" if key.maximum is None else f"from {key.minimum:g} to {key.maximum:g}"
        return Converted(
            problem=f"= {text} is out of range, {allowed} is needed" + ("" if fatal else f"; {stays}"), fatal=fatal
        )
    return Converted(value=number)


def _parse_integer(text: str, bits: int) -> int | None:
    if not _INTEGER.fullmatch(text) or len(text) > 25:
        return None
    number = int(text)
    return number if -(2**bits) <= number < 2**bits else None


def _parse_double(text: str) -> float | None:
    match = _DOUBLE.fullmatch(text) if len(text) <= 1000 else None
    return float(match[1] or "inf") if match else None


def _boolean(key: Key, text: str) -> Converted:
    word = text.lower()
    if word in _TRUE or word in _FALSE:
        return Converted(value=word in _TRUE)
    if key.primitive:  # false is then "not set" in Java, so that the default stays
        return Converted(
            problem=f"= {text!r} is neither true nor false; the default {key.default} is used", is_set=False
        )
    return Converted(value=False, problem=f"= {text!r} is neither true nor false; it counts as false, as in Java")


def _enum(key: Key, text: str) -> Converted:
    for choice in key.choices:
        if text.casefold() == choice.casefold():
            return Converted(value=choice)
    hint = "; use initialPositionInStreamExtended for it" if text.upper() == "AT_TIMESTAMP" else ""
    return Converted(problem=f"= {text!r} is not one of {', '.join(key.choices)}{hint}", fatal=True)


def _duration(text: str) -> Converted:
    match = _DURATION.fullmatch(text)
    if match:
        days, _, hours, minutes, seconds = match.groups()
        if any(part is not None for part in (days, hours, minutes, seconds)) and not text.upper().endswith("T"):
            total = (
                int(days or 0) * 86400
                + int(hours or 0) * 3600
                + int(minutes or 0) * 60
                + float((seconds or "0").replace(",", "."))
            )
            if total >= 0:
                return Converted(value=total)
            return Converted(problem=f"= {text} is negative; write a duration such as PT15M", fatal=True)
    return Converted(problem=f"= {text!r} is not an ISO-8601 duration such as P1D, PT15M or PT0.5S", fatal=True)


def _uri(text: str) -> Converted:
    try:
        parts = urlsplit(text)
        valid = not re.search(r"\s", text) and parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        valid = False
    if valid:
        return Converted(value=text)
    hint = "" if "://" in text or not text else f", for example http://{mask_uri(text)}"
    return Converted(problem=f"= {mask_uri(text)!r} is not a URL with http:// or https://{hint}", fatal=True)


def mask_uri(text: str) -> str:
    """The URL without a user name and password in it."""
    return re.sub(r"(^|//)[^/@]*@", r"\1***@", text)


def _tags(text: str) -> Converted:
    tags: dict[str, str] = {}
    skipped = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, *values = (part.strip() for part in item.split("="))
        if name and len(values) == 1 and values[0]:
            tags[name] = values[0]
        else:
            skipped.append(item)
    problem = f": {', '.join(skipped)} is not of the form name=value and is skipped" if skipped else ""
    return Converted(value=tags, problem=problem)


def _items(text: str) -> tuple[str, ...]:
    """commons-beanutils' tokenizer: every character that cannot be in a plain item separates."""
    text = text.removeprefix("{").removesuffix("}") if text.startswith("{") else text
    return tuple(match[1] or match[2] or match[3] or "" for match in _LIST_ITEM.finditer(text))


def _choices(key: Key, text: str) -> Converted:
    """Items between commas, each one of the choices; repetitions count once."""
    chosen: dict[str, None] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        one = _enum(key, item)
        if one.problem:
            return one
        chosen[one.value] = None
    if not chosen:
        return Converted(problem="is empty and counts as not set", is_set=False)
    return Converted(value=tuple(chosen))


def _epoch_seconds(text: str) -> Converted:
    number = _parse_integer(text, 63)
    if number is None:
        return Converted(problem=f"= {text!r} is not a time in whole seconds since 1970-01-01 UTC", fatal=True)
    if number < 0:
        return Converted(problem=f"= {text} is before 1970", fatal=True)
    if number >= 10**11:
        return Converted(
            problem=f"= {text} looks like milliseconds; seconds since 1970-01-01 UTC are needed", fatal=True
        )
    return Converted(value=number)


def split_command(text: str) -> tuple[str, ...]:
    """The words of `executableName`: split at runs of spaces, as Java does; tabs do not separate.

    Besides, a word that starts with ' or " extends to the same quote before a space or the end, and loses the quotes.
    A quote that is not closed this way is an ordinary character, as in Java. Source: spec multilang-protocol 5.1.
    """
    return _split(text)[0]


def has_unbalanced_quote(text: str) -> bool:
    """True when a word of the command starts with a quote that nothing closes."""
    return _split(text)[1]


def _split(text: str) -> tuple[tuple[str, ...], bool]:
    words: list[str] = []
    unbalanced = False
    rest = text.strip(" ")
    while rest:
        if rest[0] in "'\"":
            closed = re.match(rf"{rest[0]}([^{rest[0]}]*){rest[0]}(?= |$)", rest)
            if closed:
                words.append(closed[1])
                rest = rest[closed.end() :].lstrip(" ")
                continue
            unbalanced = True
        word, _, rest = rest.partition(" ")
        words.append(word)
        rest = rest.lstrip(" ")
    return tuple(words), unbalanced
