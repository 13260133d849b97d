"""`kcl-host check` as a command."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kcl_host.cli.check import check
from kcl_host.errors import KclHostError

DATA = Path(__file__).parents[1] / "data" / "config"


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def wrapped(ctx: click.Context, args: tuple[str, ...]) -> None:
    """Turns errors into one message and the exit code, as the console script does."""
    try:
        check.main(list(args), standalone_mode=False)
    except KclHostError as error:
        click.echo(f"kcl-host: {error}", err=True)
        ctx.exit(error.exit_code)


def run(*args: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "200", "AWS_REGION": None, "AWS_DEFAULT_REGION": None}).invoke(
        wrapped, [str(arg) for arg in args]
    )


def row(output: str, key: str) -> str:
    return " ".join(next(line for line in output.splitlines() if line.split()[:1] == [key]).split())


@pytest.mark.parametrize("option", [(), ("-p",), ("--properties-file",), ("--properties",)])
def test_a_good_file_is_shown_with_origins_and_exit_0(option: tuple[str, ...]) -> None:
    result = run(*option, DATA / "node_click_stream.properties")
    assert (result.exit_code, result.stderr) == (0, "")
    assert row(result.stdout, "maxRecords") == "maxRecords 1000 line 9 used"
    assert row(result.stdout, "retrievalMode") == "retrievalMode POLLING (maxRecords is set) derived used"
    assert row(result.stdout, "metricsLevel") == "metricsLevel SUMMARY line 13 used"
    assert "warning: " in result.stdout
    assert "taskBackoffTimeMillis" not in result.stdout


def test_all_shows_the_defaults_too() -> None:
    result = run("--all", DATA / "node_click_stream.properties")
    assert row(result.stdout, "taskBackoffTimeMillis") == "taskBackoffTimeMillis 500 default used"


def test_an_operating_range_that_makes_the_row_invalid_is_refused(tmp_path: Path) -> None:
    sample = (DATA / "node_click_stream.properties").read_text()
    file = tmp_path / "app.properties"
    file.write_text(f"{sample}\nworkerMetricCpuOperatingRange = 0\n")
    result = run(file)
    assert result.exit_code == 2
    assert "workerMetricCpuOperatingRange = 0 is out of range, from 1 to 100 is needed" in result.stderr


def test_an_unknown_key_is_an_error_here_and_exit_2_and_the_table_is_shown_all_the_same() -> None:
    result = run(DATA / "misspelt.properties")
    assert result.exit_code == 2
    assert "streamName or streamArn is missing" in result.stderr
    assert "misspelt.properties:7: unknown key failoverTimeMilis" in result.stderr
    assert row(result.stdout, "executableName") == "executableName processor line 1 used"


def test_without_strict_an_unknown_key_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "a.properties"
    path.write_text((DATA / "node_click_stream.properties").read_text() + "\nfailoverTimeMilis = 1\n")
    assert run(path).exit_code == 2
    result = run("--no-strict", path)
    assert result.exit_code == 0
    assert "warning: " in result.stdout
    assert "failoverTimeMilis" in result.stdout


def test_json(tmp_path: Path) -> None:
    result = run("--json", DATA / "contradictory.properties")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["ok"] is True
    values = {value["key"]: value for value in document["values"]}
    assert values["workerId"]["value"] == "winner"
    assert values["workerId"]["origin"].endswith("contradictory.properties:11")
    assert {"severity", "key", "line", "message"} <= set(document["findings"][0])
    result = run("--json", DATA / "misspelt.properties")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["ok"] is False


def test_secrets_are_masked(tmp_path: Path) -> None:
    path = tmp_path / "a.properties"
    path.write_text(
        "executableName = sh\nstreamName = s\napplicationName = app\nretrievalMode = POLLING\n"
        "AwsCredentialsProvider = ProfileCredentialsProvider|S3CRET\nkinesisEndpoint = http://u:S3CRET@host\n"
        "mySecretKey = S3CRET\n"
    )
    for option in ("--json", "--all", "--no-strict"):
        result = run(option, path)
        assert "S3CRET" not in result.output
        assert "ProfileCredentialsProvider|***" in result.stdout


def test_a_command_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "a.properties"
    path.write_text(
        "executableName = ./no-such-program\nstreamName = s\napplicationName = app\nretrievalMode = POLLING\n"
        "AwsCredentialsProvider = AnonymousCredentialsProvider\nregionName = eu-wst-1\n"
    )
    result = run(path)
    assert result.exit_code == 0
    assert "./no-such-program is not found" in result.stdout
    assert "did you mean eu-west-1?" in result.stdout


def test_files_that_cannot_be_read_are_one_line_and_exit_2(tmp_path: Path) -> None:
    for args, said in (
        ((tmp_path / "none",), "there is no such file"),
        ((tmp_path,), "this is a directory"),
        ((), "no properties file given"),
    ):
        result = run(*args)
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "a.properties"
    path.write_text("a = b\n")
    path.chmod(0)
    try:
        path.read_bytes()
    except PermissionError:
        result = run(path)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "no permission to read this file" in result.stderr
    else:
        pytest.skip("this user may read every file")
    finally:
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)


@pytest.mark.parametrize(
    "command", ["spark-submit driver.py", "/opt/spark/bin/spark-submit x.py", "env A=1 spark-submit x"]
)
def test_spark_submit_cannot_be_a_child(command: str, tmp_path: Path) -> None:
    file = tmp_path / "app.properties"
    lines = (DATA / "node_click_stream.properties").read_text().splitlines()
    rest = "\n".join(line for line in lines if not line.startswith("executableName"))
    file.write_text(f"executableName = {command}\n{rest}\n")
    result = run(file)
    assert result.exit_code == 2
    assert "python driver.py" in result.stderr and "PYSPARK_SUBMIT_ARGS" in result.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("spark.server.memory = 100m", "512m at least"),
        ("spark.server.memory = 2", "must be like 2g"),
        ("spark.remote = host:15002", "sc://HOST:PORT"),
        ("spark.server = yarn", "spark.server"),
    ],
)
def test_what_is_wrong_about_spark(line: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "app.properties"
    file.write_text((DATA / "node_click_stream.properties").read_text() + f"\nspark.server = local\n{line}\n")
    result = run(file)
    assert said in result.stderr + result.stdout


def test_a_local_spark_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "app.properties"
    file.write_text((DATA / "node_click_stream.properties").read_text() + "\nspark.server = local\n")
    runner = CliRunner(env={"SPARK_HOME": str(tmp_path), "SPARK_REMOTE": None, "COLUMNS": "200"})
    result = runner.invoke(wrapped, [str(file)])
    assert result.exit_code == 0
    assert "kcl-host[spark-local]" in result.stdout
    assert row(result.stdout, "spark.server").startswith("spark.server local line")
    runner = CliRunner(env={"SPARK_REMOTE": "sc://theirs", "COLUMNS": "200"})
    assert "spark.server is ignored" in runner.invoke(wrapped, [str(file)]).stdout
