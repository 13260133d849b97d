"""scripts/mutants: each patch in this folder breaks one rule; the test that it names must fail then.

A patch begins with lines of its own: what it breaks and where that is promised, then `kills: <pytest node>` for each
test, then the diff, with little context so that it stays applicable. All of the named tests must fail.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COPIED = ("kcl_host", "protocol", "tests", "samples", "pyproject.toml", "README.md", "scripts", "docs")
TIMEOUT_S = 300
KILLS = re.compile(r"^kills: *(\S.*)$", re.M)


@dataclass(frozen=True)
class Mutant:
    path: Path
    breaks: str
    tests: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Mutant:
        head = path.read_text().partition("\n--- ")[0]
        tests = tuple(KILLS.findall(head))
        if not tests:
            raise click.ClickException(f"{path.name} names no test: add a line `kills: tests/...::test_...`")
        return cls(path, KILLS.sub("", head).strip(), tests)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1)
@click.option("--jobs", default=os.cpu_count(), show_default=True)
def main(names: tuple[str, ...], jobs: int) -> None:
    """Apply each mutant (or those whose file names contain one of NAMES) to a copy, and see its test fail.

    Exit code 1 when one survives, does not apply any more, or names a test that fails without it too.
    """
    paths = [p for p in sorted(HERE.glob("*.patch")) if not names or any(name in p.name for name in names)]
    mutants = [Mutant.read(path) for path in paths]
    if not mutants:
        raise click.ClickException("no such mutant")
    with tempfile.TemporaryDirectory() as folder:
        # Its byte code is copied with it: what a mutant does not change is compiled once.
        sound = _copy(ROOT, Path(folder) / "sound")
        code, said = _pytest(sound, tuple(dict.fromkeys(test for m in mutants for test in m.tests)))
        if code:
            raise click.ClickException(f"the named tests must pass as long as nothing is broken:\n{said}")
        survivors = 0
        with ThreadPoolExecutor(jobs) as pool:
            judged = pool.map(lambda m: _judge(m, _copy(sound, Path(folder) / m.path.stem)), mutants)
            for mutant, verdict in zip(mutants, judged, strict=True):
                click.echo(f"{verdict:8} {mutant.path.stem}")
                if verdict != "killed":
                    survivors += 1
                    click.echo(mutant.breaks)
    click.echo(f"{len(mutants)} mutants, {len(mutants) - survivors} killed")
    sys.exit(1 if survivors else 0)


def _copy(source: Path, to: Path) -> Path:
    to.mkdir()
    for name in COPIED:
        if (source / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__") if source is ROOT else None
            shutil.copytree(source / name, to / name, ignore=ignore)
        else:
            shutil.copy2(source / name, to / name)
    return to


def _judge(mutant: Mutant, copy: Path) -> str:
    applied = subprocess.run(
        ["patch", "--strip=1", "--fuzz=0", "--input", str(mutant.path)], cwd=copy, capture_output=True, text=True
    )
    if applied.returncode:
        return f"does not apply: {applied.stdout.strip()}"
    code, said = _pytest(copy, mutant.tests)
    shutil.rmtree(copy)
    if code not in (0, 1):  # 1 is "tests failed"; anything else is a mistake of ours.
        return f"pytest exit {code}: {said[-400:]}"
    failed = [line.removeprefix("FAILED ") for line in said.splitlines() if line.startswith("FAILED ")]
    survived = [test for test in mutant.tests if not any(_is_of(test, line) for line in failed)]
    return f"SURVIVED {' '.join(survived)}" if survived else "killed"


def _is_of(test: str, failed: str) -> bool:
    """True when a line of the summary is about `test`, or about one of its parameters."""
    return failed.startswith(test) and failed[len(test) :][:1] in ("", "[", " ")


def _pytest(folder: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """Runs tests on the copy, which comes before whatever is installed."""
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "500"}  # Lines that are long lose their end.
    try:
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return -1, f"no end within {TIMEOUT_S} s"
    return run.returncode, run.stdout + run.stderr


if __name__ == "__main__":
    main()
