"""The command line's own part: which command is meant, and what the process ends with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kcl_host.cli.main import COMMANDS, cli, expand_argument_files


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "kcl_host", *args], capture_output=True, text=True, timeout=60)


def test_help_names_every_command_and_the_exit_codes() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in result.output
    assert "Exit codes: 0 stopped as asked" in result.output


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help_that_teaches(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "--help"])
    assert result.exit_code == 0
    assert len(result.output.splitlines()) > 8


def test_no_arguments_shows_the_help_and_is_wrong_usage() -> None:
    result = CliRunner().invoke(cli, [])
    assert result.exit_code == 2
    assert "kcl-host demo" in result.output


@pytest.mark.parametrize("args", [["nowhere.properties"], ["-p", "nowhere.properties"]])
def test_anything_that_is_no_command_is_run(args: list[str]) -> None:
    result = run(*args)
    assert result.returncode == 2
    assert "nowhere.properties" in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_debug_adds_the_traceback() -> None:
    result = run("nowhere.properties", "--debug")
    assert result.returncode == 2
    assert "Traceback" in result.stderr


def test_an_unknown_option_is_wrong_usage() -> None:
    result = run("check", "--nonsense")
    assert result.returncode == 2
    assert "--nonsense" in result.stderr


def test_an_argument_file_stands_for_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "args"
    file.write_text("-p\n\napp.properties\n")
    assert expand_argument_files([f"@{file}", "--debug"]) == ["-p", "app.properties", "--debug"]
    assert expand_argument_files(["@no-such-file"]) == ["@no-such-file"]
