"""The client without pandas: a third less memory for every child, and the real thing for whoever uses it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'kcl-host[spark]'")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'kcl-host[spark]'")

pytestmark = pytest.mark.interop


def run(code: str, folder: object) -> None:
    program = f"{folder}/program.py"  # with -c pyspark takes itself for a test of its own
    with open(program, "w") as file:
        file.write(f"import os, sys\nos.environ['SPARK_REMOTE'] = 'sc://localhost:1'\n{code}")
    subprocess.run([sys.executable, program], check=True, env=dict(os.environ))


def test_pandas_is_imported_when_it_is_used(tmp_path: object) -> None:
    run(
        """
from kcl_host.spark.arrow import positions, to_table
from kcl_host.spark.lines import Record
from kcl_host.spark.thin import import_client
import_client()
records = [Record(sequence_number="7", partition_key="k", arrived_ms=1, data=b"x")]
assert positions(to_table(records, "s", "shard"))[0].sequence_number == 7
assert "pandas" not in sys.modules
import pandas
assert pandas.DataFrame({"a": [1]}).a.sum() == 1
import pyspark.sql.connect.session as session
assert session.pd.DataFrame is pandas.DataFrame
assert session.is_datetime64_dtype(pandas.Series([pandas.Timestamp(0)]).dtype)
assert isinstance(pandas.DataFrame(), session.pd.DataFrame)
""",
        tmp_path,
    )


def test_pandas_that_is_there_is_used(tmp_path: object) -> None:
    run(
        """
import pandas
from kcl_host.spark.thin import import_client
import_client()
import pyspark.sql.connect.session as session
assert session.pd is pandas
""",
        tmp_path,
    )
