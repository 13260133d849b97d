"""scripts/mutants: each patch in this folder breaks one rule; the test that it names must fail then.

A patch begins with lines of its own: what it breaks, then `kills: <pytest node>` for each test, then the diff.
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
from rich.console import Console
from rich.table import Table

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
    console = Console()
    paths = [p for p in sorted(HERE.glob("*.patch")) if not names or any(name in p.name for name in names)]
    mutants = [Mutant.read(path) for path in paths]
    if not mutants:
        raise click.ClickException("no such mutant")
    with tempfile.TemporaryDirectory() as folder:
        sound = _copy(Path(folder) / "sound")
        code, said = _pytest(sound, tuple(dict.fromkeys(test for m in mutants for test in m.tests)))
        if code:
            console.print(said, markup=False)
            raise click.ClickException("the named tests must pass as long as nothing is broken")
        with ThreadPoolExecutor(jobs) as pool:
            verdicts = list(pool.map(lambda m: _judge(m, Path(folder) / m.path.stem), mutants))
    table = Table("mutant", "breaks", "verdict")
    for mutant, verdict in zip(mutants, verdicts, strict=True):
        table.add_row(mutant.path.stem, mutant.breaks, verdict, style="" if verdict == "killed" else "red")
    console.print(table)
    survivors = sum(verdict != "killed" for verdict in verdicts)
    console.print(f"{len(mutants)} mutants, {len(mutants) - survivors} killed")
    sys.exit(1 if survivors else 0)


def _copy(to: Path) -> Path:
    to.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, to / name)
    return to


def _judge(mutant: Mutant, folder: Path) -> str:
    copy = _copy(folder)
    applied = subprocess.run(
        ["patch", "--strip=1", "--fuzz=0", "--input", str(mutant.path)], cwd=copy, capture_output=True, text=True
    )
    if applied.returncode:
        return f"does not apply: {applied.stdout.strip()}"
    verdicts = [_pytest(copy, (test,)) for test in mutant.tests]
    shutil.rmtree(copy)
    for test, (code, said) in zip(mutant.tests, verdicts, strict=True):
        if code == 0:
            return f"SURVIVED {test}"
        if code != 1:  # 1 is "tests failed"; anything else is a mistake of ours.
            return f"pytest exit {code}: {said[-400:]}"
    return "killed"


def _pytest(folder: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """Runs tests on the copy, which comes before whatever is installed."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    return run.returncode, run.stdout + run.stderr


if __name__ == "__main__":
    main()
