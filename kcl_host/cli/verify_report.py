"""What `kcl-host verify` found, for people, for build servers (JUnit XML) and as a badge (SVG).

Names, lines and stderr come from the child: nothing of it is written without being escaped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape, quoteattr

import click
import msgspec

from kcl_host.cli.verify_session import SessionReport

_NOT_SHOWN: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
"""Control characters, which a terminal would obey and XML does not allow."""
_LINE_CHARACTERS: Final = 2000


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    command: tuple[str, ...]
    ok: bool
    notes: tuple[str, ...]
    sessions: tuple[SessionReport, ...]


def summary(command: Sequence[str], sessions: Sequence[SessionReport]) -> VerifyReport:
    notes = []
    if all(s.ok for s in sessions) and not any(s.checkpoints for s in sessions):
        notes.append("never asks for a checkpoint: after a restart everything would be delivered again")
    return VerifyReport(
        command=tuple(command), ok=all(s.ok for s in sessions), notes=tuple(notes), sessions=tuple(sessions)
    )


def print_session(report: SessionReport, *, times: bool) -> None:
    verdict = click.style("ok       ", fg="green") if report.ok else click.style("deviation", fg="red", bold=True)
    click.echo(f"{verdict}  {_shown(report.session):<26} {report.duration_s:7.2f} s")
    for line in [*_deviations_of(report), *(f"note: {note}" for note in report.notes)]:
        click.echo(f"    {_shown(line)}")
    if times:
        for took in report.actions:
            click.echo(
                f"    {took.action:<18} {took.count:6} x, mean {_in_ms(took.mean_s)}, longest {_in_ms(took.longest_s)}"
            )
    if not report.ok:
        for line in report.stderr:
            click.echo(f"    stderr: {_shown(line)}")


def print_summary(result: VerifyReport) -> None:
    for note in result.notes:
        click.echo(f"note: {note}")
    failed = [s.session for s in result.sessions if not s.ok]
    if failed:
        names = _shown(", ".join(failed))
        click.echo(f"{len(failed)} of {len(result.sessions)} sessions deviate from the protocol: {names}")
    else:
        click.echo(f"{len(result.sessions)} sessions without a deviation")


def junit(result: VerifyReport) -> str:
    """JUnit XML: one test case per session, its deviations as one failure, notes as output."""
    failures = sum(not session.ok for session in result.sessions)
    seconds = sum(session.duration_s for session in result.sessions)
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuite name="kcl-host verify" tests="{len(result.sessions)}" failures="{failures}" errors="0" '
        f'skipped="0" time="{seconds:.3f}">',
        f'<properties><property name="command" value={_attribute(" ".join(result.command))}/></properties>',
    ]
    for session in result.sessions:
        name = _attribute(session.session)
        lines.append(f'<testcase classname="kcl-host.verify" name={name} time="{session.duration_s:.3f}">')
        if session.deviations:
            message = f"{session.deviations[0].action}: {session.deviations[0].message}"
            text = escape(_clean("\n".join(_deviations_of(session))))
            lines.append(f'<failure type="deviation" message={_attribute(message)}>{text}</failure>')
        for tag, said in (("system-out", session.notes), ("system-err", session.stderr)):
            if said:
                lines.append(f"<{tag}>{escape(_clean(chr(10).join(said)))}</{tag}>")
        lines.append("</testcase>")
    return "\n".join([*lines, "</testsuite>", ""])


def badge(result: VerifyReport) -> str:
    """A small SVG, without fonts or anything else to load: how many of the sessions were without a deviation."""
    label = "MultiLang protocol"
    value = f"{sum(session.ok for session in result.sessions)} of {len(result.sessions)}"
    left, right = 7 * len(label) + 12, 7 * len(value) + 12
    colour = "#1a7f37" if result.ok else "#b42318"
    title = escape(_clean(f"{label}: {value} sessions of kcl-host verify without a deviation"))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img">
<title>{title}</title>
<rect width="{left}" height="20" fill="#444c56"/>
<rect x="{left}" width="{right}" height="20" fill="{colour}"/>
<g fill="#ffffff" font-family="Verdana, Geneva, sans-serif" font-size="11">
<text x="6" y="14" textLength="{left - 12}">{escape(label)}</text>
<text x="{left + 6}" y="14" textLength="{right - 12}">{escape(value)}</text>
</g>
</svg>
"""


def _deviations_of(session: SessionReport) -> list[str]:
    lines = []
    for deviation in session.deviations:
        lines.append(f"{deviation.action}: {deviation.message}")
        if deviation.line is not None:
            lines.append(f"  child> {deviation.line}")
    return lines


def _clean(text: str) -> str:
    return _NOT_SHOWN.sub("\ufffd", text)


def _shown(text: str) -> str:
    """For a terminal: one line, and of that the beginning."""
    line = _clean(text).replace("\n", " ")
    return line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]}..."


def _attribute(text: str) -> str:
    return quoteattr(_clean(text), {"\n": " "})


def _in_ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
