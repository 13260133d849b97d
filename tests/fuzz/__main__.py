"""scripts/fuzz: every target, or those named, with so many inputs of a seed."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context

from tests.fuzz.driver import input_of
from tests.fuzz.report import run_named
from tests.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--inputs", type=int, default=100_000, help="for each target (100000)")
    parser.add_argument("--seed", type=int, default=None, help="default: of the day")
    parser.add_argument("--first", type=int, default=0, help="number of the first input (0)")
    parser.add_argument("--jobs", type=int, default=1, help="targets at the same time (1)")
    parser.add_argument("--only", type=int, help="run this one input, show it, and let its traceback out")
    given = parser.parse_args()
    if unknown := sorted(set(given.targets) - set(TARGETS)):
        parser.error(f"no target {', '.join(unknown)}; there is {', '.join(TARGETS)}")
    names = given.targets or list(TARGETS)
    seed = int(time.strftime("%Y%m%d", time.gmtime())) if given.seed is None else given.seed
    if given.only is not None:
        for name in names:
            value = input_of(TARGETS[name], seed, given.only)
            print(f"{name}: {value!r}")
            TARGETS[name].run(value)
        return 0
    numbers = range(given.first, given.first + given.inputs)
    bad = False
    with ProcessPoolExecutor(given.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        for line, is_bad in pool.map(run_named, names, repeat(numbers), repeat(seed)):
            print(line, flush=True)
            bad = bad or is_bad
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
