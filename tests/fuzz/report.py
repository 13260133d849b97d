"""What is printed about a run of one target."""

from __future__ import annotations

import time

from tests.fuzz.driver import fuzz, progress
from tests.fuzz.targets import TARGETS

SHOWN = 20


def run_named(name: str, numbers: range, seed: int) -> tuple[str, bool]:
    """In a process of its own: what one target leaves behind is not the growth of another."""
    began_s = time.monotonic()
    outcome = fuzz(TARGETS[name], numbers, seed, progress(name, len(numbers)))
    took_s = time.monotonic() - began_s
    lines = [
        f"{name:15} seed {seed}  {outcome.inputs:,} inputs in {took_s:.0f} s ({outcome.inputs / took_s:,.0f}/s, "
        f"CPU {outcome.cpu_s:.0f} s)  slowest {outcome.slowest_s * 1000:.0f} ms  "
        f"grown {outcome.grown_bytes >> 20} MiB  {len(outcome.findings) or 'no'} findings",
        *(f"  {finding}" for finding in outcome.findings[:SHOWN]),
    ]
    return "\n".join(lines), bool(outcome.findings)
