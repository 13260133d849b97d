"""Feeds a target with inputs made from a seed, and finds what it must not do: raise anything it does not document,
take longer than a second of CPU for one input, or make the process grow by more than an input may cost.

Input n of a seed is the same on every machine and does not depend on those before it, so a finding is reproduced by
three values: target, seed, number.
"""

from __future__ import annotations

import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NamedTuple

CPU_LIMIT_S = 1.0
"""Of one input. CPU time, so that a busy machine finds nothing."""
GROWTH_LIMIT_BYTES = 160 * 2**20
"""Of the process's peak by one input: twice what the largest bound of the host allows (64 MiB) and some room."""
LEAK_LIMIT_BYTES = 96 * 2**20
"""Of what is resident from a twentieth of the run to its end."""
SHOWN = 2000
_PEAK = Path("/proc/self/clear_refs")
PACKAGE = str(Path(__file__).parents[2] / "kcl_host")


class Target(NamedTuple):
    """`make` an input from random numbers; `run` the code on it, which raises whatever it should not."""

    name: str
    make: Callable[[Random], Any]
    run: Callable[[Any], None]


class Finding(NamedTuple):
    """What went wrong first in one place, and how often there."""

    target: str
    seed: int
    number: int
    what: str
    given: str
    times: int = 1

    def __str__(self) -> str:
        again = f"scripts/fuzz {self.target} --seed {self.seed} --only {self.number}"
        return f"{self.what}\n  input {self.given}\n  {self.times} times, first: {again}"


class Outcome(NamedTuple):
    inputs: int
    cpu_s: float
    slowest_s: float
    grown_bytes: int
    findings: tuple[Finding, ...]


class TooSlow(BaseException):
    """An input is over its time. No Exception, so that nothing on the way takes it for its own."""


def input_of(target: Target, seed: int, number: int) -> Any:
    return target.make(Random(seed << 40 | number))


def fuzz(
    target: Target,
    numbers: Iterable[int],
    seed: int,
    report: Callable[[int], None] | None = None,
    *,
    cpu_limit_s: float = CPU_LIMIT_S,
    growth_limit_bytes: int = GROWTH_LIMIT_BYTES,
) -> Outcome:
    """Runs the target on these inputs. `report` is called with how many there have been, now and then."""
    found: dict[str, Finding] = {}
    began_s, slowest_s, done, first_bytes = time.process_time(), 0.0, 0, _resident_bytes()
    _PEAK.write_text("5")  # forgets it
    peak = _peak_bytes()
    with _cpu_alarm():
        for number in numbers:
            given = input_of(target, seed, number)
            started_s = time.process_time()
            what = _broken(target, given, cpu_limit_s)
            took_s = time.process_time() - started_s
            slowest_s = max(slowest_s, took_s)
            if (now := _peak_bytes()) > peak:
                if now - peak > growth_limit_bytes:
                    what = what or f"{target.name}: one input made the process grow by {(now - peak) >> 20} MiB"
                peak = now
            if what:
                known = found.get(what)
                shown = repr(given)
                shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}... ({len(shown)} characters)"
                found[what] = (
                    known._replace(times=known.times + 1) if known else Finding(target.name, seed, number, what, shown)
                )
            done += 1
            if done % 4096 == 0:
                if done == 4096:
                    first_bytes = _resident_bytes()
                if report:
                    report(done)
    grown = max(0, _resident_bytes() - first_bytes)
    if done > 4096 and grown > LEAK_LIMIT_BYTES:
        what = f"{target.name}: {grown >> 20} MiB more are resident after {done} inputs than after 4096"
        found[what] = Finding(target.name, seed, 0, what, "all of them")
    return Outcome(done, time.process_time() - began_s, slowest_s, grown, tuple(found.values()))


def _broken(target: Target, given: Any, cpu_limit_s: float) -> str | None:
    """What the target did that it must not, named by its place so that the same is one finding; None: nothing."""
    try:
        try:
            _armed[0] = True
            signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
            target.run(given)
        finally:
            _armed[0] = False  # The alarm may come between here and the end of the call.
            signal.setitimer(signal.ITIMER_PROF, 0)
    except (Exception, TooSlow) as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if frame.filename.startswith(PACKAGE)] or frames
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} in {ours[-1].name}"
        said = f"more than {cpu_limit_s} s of CPU" if isinstance(error, TooSlow) else type(error).__name__
        detail = f": {error}" if isinstance(error, AssertionError) else ""
        return f"{target.name}: {said}{detail[:300]} at {where}"
    return None


_armed = [False]


@contextmanager
def _cpu_alarm() -> Iterator[None]:
    def over(number: int, frame: FrameType | None) -> None:
        if _armed[0]:
            _armed[0] = False
            raise TooSlow

    before = signal.signal(signal.SIGPROF, over)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _peak_bytes() -> int:
    """Not getrusage's: that one remembers also what this process was before it executed Python."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def progress(name: str, of: int) -> Callable[[int], None]:
    """Tells on stderr, where that is a terminal, how far a run is."""
    began_s = time.monotonic()

    def tell(done: int) -> None:
        rate = done / max(time.monotonic() - began_s, 1e-9)
        print(f"\r{name} {done:,} of {of:,}, {rate:,.0f}/s ", end="", file=sys.stderr, flush=True)

    return tell if sys.stderr.isatty() else lambda done: None
