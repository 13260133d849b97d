"""Our own processors, the samples and the demo, as children of the real dialogue."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hosted_child import SHARD_ID, HostedChild

from kcl_host.model.records import Record

ROOT = Path(__file__).parents[2]
RECORDS = [
    Record(
        data=data,
        partition_key='a"data":"x" ключ',
        sequence_number=str(4950 + i),
        approximate_arrival_timestamp=1735689600123,
        sub_sequence_number=i,
    )
    for i, data in enumerate(["aGVsbG8=", "", "d29ybGQ="])
]


SAMPLES = {
    "python": [sys.executable, "samples/python/processor.py"],
    "shell": ["bash", "samples/shell/processor.sh"],
    "node": ["node", "samples/node/processor.js"],
}
NEEDS = {"shell": ["jq"]}


@pytest.fixture(params=SAMPLES)
def sample(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    command = SAMPLES[request.param]
    for tool in (command[0], *NEEDS.get(request.param, ())):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    monkeypatch.chdir(ROOT)
    return command


def test_a_sample_lives_a_whole_life(sample: list[str]) -> None:
    with HostedChild(sample) as hosted:
        hosted.initialize()
        hosted.actions.process_records(RECORDS, 0)
        hosted.actions.process_records([], None)
        assert hosted.checkpoints == [(None, None, True)] * 2
        hosted.actions.shutdown_requested()
        assert hosted.checkpoints == [(None, None, True)] * 3
        hosted.actions.lease_lost()
        assert hosted.actions.end() == 0
        said = "\n".join(hosted.stderr)
        assert "hello" in said
        assert "world" in said


def test_a_sample_checkpoints_the_end_of_a_shard(sample: list[str]) -> None:
    with HostedChild(sample) as hosted:
        hosted.initialize()
        hosted.actions.shard_ended()
        assert hosted.checkpoints == [(None, None, True)]
        assert hosted.actions.end() == 0


def test_a_sample_whose_checkpoint_is_refused_goes_on(sample: list[str]) -> None:
    with HostedChild(sample, "ShutdownException") as hosted:
        hosted.initialize()
        hosted.actions.process_records(RECORDS, 0)
        assert hosted.checkpoints == [(None, None, True)]
        hosted.actions.process_records(RECORDS, 0)
        assert hosted.checkpoints == [(None, None, True)] * 2
        hosted.actions.lease_lost()
        assert hosted.actions.end() == 0


def test_a_sample_is_named_by_its_properties_file() -> None:
    for name, command in SAMPLES.items():
        properties = (ROOT / "samples" / name / "sample.properties").read_text()
        assert (
            f"executableName = {Path(command[0]).name if name != 'python' else 'python'} {command[1]}\n" in properties
        )


def test_the_demo_writes_every_record_before_its_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "kcl_host.processor.demo"]
    with HostedChild(command, "ThrottlingException", KCL_DEMO_OUT=str(out)) as hosted:
        hosted.initialize()
        hosted.actions.process_records(RECORDS, 0)
        assert hosted.checkpoints == [(None, None, True)]
        assert out.read_text() == (f"{SHARD_ID} 4950 0 hello\n{SHARD_ID} 4951 1 \n{SHARD_ID} 4952 2 world\n")
        hosted.actions.lease_lost()
        assert hosted.actions.end() == 0
        assert hosted.stderr == [
            f"WARN {SHARD_ID}: checkpoint refused: ThrottlingException",
            f"INFO {SHARD_ID}: lease lost after 3 records",
        ]


def test_the_demo_can_leave_out_checkpoints() -> None:
    command = [sys.executable, "-m", "kcl_host.processor.demo"]
    with HostedChild(command, DEMO_CHECKPOINT="off") as hosted:
        hosted.initialize()
        hosted.actions.process_records(RECORDS, 0)
        assert hosted.checkpoints == []
        hosted.actions.shard_ended()
        assert hosted.checkpoints == [(None, None, True)]


def test_print_and_subprocesses_of_a_python_processor_cannot_disturb_the_dialogue(tmp_path: Path) -> None:
    script = tmp_path / "chatty.py"
    script.write_text(
        "import subprocess, sys\n"
        "from kcl_host.processor import RecordProcessor, run\n"
        "class Chatty(RecordProcessor):\n"
        "    def process_records(self, records, checkpointer):\n"
        '        print(\'{"action":"status","responseFor":"leaseLost"}\')\n'
        "        subprocess.run('echo from the shell; cat', shell=True)\n"
        "        print(repr(sys.stdin.read()))\n"
        "run(Chatty())\n"
    )
    with HostedChild([sys.executable, str(script)]) as hosted:
        hosted.initialize()
        hosted.actions.process_records(RECORDS, 0)
        hosted.actions.lease_lost()
        assert hosted.actions.end() == 0
        assert hosted.stderr == ['{"action":"status","responseFor":"leaseLost"}', "from the shell", "''"]


def test_a_python_processor_imports_nothing_of_the_host() -> None:
    program = "import sys, kcl_host.processor.demo; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {name for name in loaded if name.startswith("kcl_host")} == {
        "kcl_host", "kcl_host.processor", "kcl_host.processor.demo", "kcl_host.processor.record_processor",
    }  # fmt: skip
    assert not loaded & {"msgspec", "boto3", "click", "dataclasses", "logging", "asyncio"}
