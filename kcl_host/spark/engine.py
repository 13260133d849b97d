# mypy: disable-error-code="import-not-found, import-untyped"
"""What turns a batch's columns into the frame that a transform gets, and frames into Parquet files.

`SparkEngine` hands the batch to Spark through a spool folder, as uncompressed Parquet that both can see: three times
faster than uploading it, and an upload of more than 1 MiB stays on the server until its session ends. Only where no
folder is shared does it upload, and then renews the session every UPLOAD_LIMIT_BYTES. `ArrowEngine` needs no Spark:
the transform gets and returns Arrow tables.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import socket
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from kcl_host.spark.faults import reach
from kcl_host.spark.position import Position

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)

UPLOAD_LIMIT_BYTES: Final = 256 * 1024 * 1024
SPOOL_FILE_BYTES: Final = 4 * 1024 * 1024
"""A batch is spooled as one file per core, but none smaller than this."""


class Engine(Protocol):
    """One process has one. Frames are what it makes; nobody else looks into them."""

    def columns(self, records: Sequence[Any], stream: str, shard_id: str) -> Any:
        """`lines.Record`s as a Chunk."""
        ...

    def positions(self, columns: Any) -> Sequence[Position]:
        """Of the records in a Chunk, in order."""
        ...

    def frame(self, chunks: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
        """All of a batch as one frame, usable until the context ends."""
        ...

    def write(self, frame: Any, uri: str) -> None:
        """Writes its rows as Parquet files into a new folder."""
        ...

    def may_pass(self, error: Exception) -> bool:
        """Whether to try again with a new session."""
        ...

    def reset(self) -> None:
        """Drops everything that an error may have spoilt; the next frame begins anew. Raises nothing."""
        ...


class SparkEngine:
    """A thin client of a Connect server (SPARK_REMOTE), or a classic driver in this process.

    `session` opens one where the environment is not enough. `spool` is a folder that this process and every Spark
    executor see under the same name: by default KCL_HOST_SPARK_SPOOL, else the temporary folder when Spark is on this
    machine (loopback or local master); otherwise, or with `upload`, batches are uploaded. `conf` is set in each new
    session.
    """

    def __init__(
        self,
        *,
        session: Callable[[], SparkSession] | None = None,
        spool: str | os.PathLike[str] | None = None,
        upload: bool = False,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self._open = session or open_session
        self._conf = {
            # INT96, Spark's default, is nanoseconds to everybody else.
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
            "spark.sql.session.timeZone": "UTC",
            **(conf or {}),
        }
        self._session: SparkSession | None = None
        self._uploaded_bytes = 0
        named = spool or os.environ.get("KCL_HOST_SPARK_SPOOL")
        self._spool: Path | None = None
        if not upload and (named or _on_this_machine()):
            self._spool = Path(named or Path(tempfile.gettempdir(), f"kcl-host-spool-{os.getuid()}")).absolute()
            self._spool.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self._spool.lstat()  # Of a name that anybody may have taken before us.
            if not named and (found.st_uid != os.getuid() or found.st_mode & 0o170022 != stat.S_IFDIR):
                raise PermissionError(
                    f"{self._spool} belongs to somebody else, is a link or open to others; name another in "
                    "KCL_HOST_SPARK_SPOOL"
                )
            _sweep(self._spool)

    @property
    def session(self) -> SparkSession:
        """Opened when it is first needed, and anew after `reset`."""
        if self._session is None:
            self._session = self._open()
            for name, value in self._conf.items():
                self._session.conf.set(name, value)
        return self._session

    def columns(self, records: Sequence[Any], stream: str, shard_id: str) -> pa.Table:
        from kcl_host.spark.arrow import to_table

        return to_table(records, stream, shard_id)

    def positions(self, columns: pa.Table) -> Sequence[Position]:
        from kcl_host.spark.arrow import positions

        return positions(columns)

    @contextlib.contextmanager
    def frame(self, chunks: Sequence[pa.Table]) -> Iterator[DataFrame]:
        import pyarrow as pa

        table = pa.concat_tables(chunks)
        if self._spool is None:
            yield self._upload(table)
            return
        folder = self._spool / f"{_owner()}.{uuid.uuid4().hex}"
        folder.mkdir()
        try:
            paths = _spool_files(table, folder)
            reach("spooled")
            from kcl_host.spark.arrow import DDL

            yield self.session.read.schema(DDL).parquet(*paths)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def write(self, frame: DataFrame, uri: str) -> None:
        frame.write.mode("error").parquet(uri)

    def may_pass(self, error: Exception) -> bool:
        """True for everything that Spark or the connection to it says, except that the query or its data are wrong."""
        from pyspark import errors

        if isinstance(
            error,
            (
                errors.AnalysisException,
                errors.ArithmeticException,
                errors.DateTimeException,
                errors.IllegalArgumentException,
                errors.NumberFormatException,
                errors.PythonException,
            ),
        ):
            return False
        if isinstance(error, (errors.PySparkException, OSError)):
            return True
        with contextlib.suppress(ImportError):
            from grpc import RpcError

            return isinstance(error, RpcError)
        return False

    def reset(self) -> None:
        session, self._session, self._uploaded_bytes = self._session, None, 0
        if session is None:
            return
        try:
            session.stop()
        except Exception as error:  # it is gone for whatever reason; the next one tells whether Spark is there
            _log.debug("the Spark session did not end in order: %s", error)

    def _upload(self, table: pa.Table) -> DataFrame:
        self._uploaded_bytes += table.nbytes
        if self._uploaded_bytes > UPLOAD_LIMIT_BYTES:
            self.reset()
            self._uploaded_bytes = table.nbytes
        return self.session.createDataFrame(table)


class ArrowEngine:
    """Arrow tables instead of Spark: for transforms that need no cluster, and for tests of everything else."""

    def columns(self, records: Sequence[Any], stream: str, shard_id: str) -> pa.Table:
        from kcl_host.spark.arrow import to_table

        return to_table(records, stream, shard_id)

    def positions(self, columns: pa.Table) -> Sequence[Position]:
        from kcl_host.spark.arrow import positions

        return positions(columns)

    @contextlib.contextmanager
    def frame(self, chunks: Sequence[pa.Table]) -> Iterator[pa.Table]:
        import pyarrow as pa

        yield pa.concat_tables(chunks)

    def write(self, frame: pa.Table, uri: str) -> None:
        import pyarrow.parquet as pq

        Path(uri).mkdir(parents=True)
        pq.write_table(frame, f"{uri}/part-00000.parquet", compression="zstd")

    def may_pass(self, error: Exception) -> bool:
        return isinstance(error, OSError)

    def reset(self) -> None:
        pass


def open_session() -> SparkSession:
    """A new session: on SPARK_REMOTE where it is set, else a classic driver by PYSPARK_SUBMIT_ARGS or its defaults.

    The client of a Connect server gives up after about ten seconds instead of ten minutes, so that a batch is tried
    anew with a new session (the old one does not survive a restart of the server). Raises RuntimeError when there is
    neither.
    """
    remote = os.environ.get("SPARK_REMOTE")
    if remote is not None:
        from kcl_host.spark.thin import import_client

        import_client()
    from pyspark.sql import SparkSession
    from pyspark.util import is_remote_only

    if remote is None:
        if is_remote_only():
            raise RuntimeError(
                "no Spark: set SPARK_REMOTE=sc://host:port (this is pyspark-client, which has no Spark of its own), or "
                "install kcl-host[spark-local]"
            )
        return SparkSession.builder.getOrCreate()
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session = SparkSession.builder.remote(remote).create()
    session.client.set_retry_policies([DefaultPolicy(max_retries=6, initial_backoff=100, max_backoff=4000)])
    return session


def _on_this_machine() -> bool:
    remote = os.environ.get("SPARK_REMOTE")
    if remote is not None:
        return urlsplit(remote).hostname in ("localhost", "127.0.0.1", "::1")
    words = os.environ.get("PYSPARK_SUBMIT_ARGS", "").split()
    masters = [after for word, after in itertools.pairwise(words) if word == "--master"]
    return all(master.startswith("local") for master in masters)


def _spool_files(table: pa.Table, folder: Path) -> list[str]:
    import pyarrow.parquet as pq

    files = max(1, min(os.cpu_count() or 1, table.nbytes // SPOOL_FILE_BYTES))
    step = -(-table.num_rows // files)
    paths = []
    for first in range(0, table.num_rows, step):
        paths.append(str(folder / f"{first}.parquet"))
        pq.write_table(
            table.slice(first, step), paths[-1], compression="none", use_dictionary=False, write_statistics=False
        )
    return paths


def _owner() -> str:
    return f"{socket.gethostname()}.{os.getpid()}"


def _sweep(spool: Path) -> None:
    """Removes what processes of this host left there when they were killed."""
    for folder in spool.iterdir():
        host, _, pid = folder.name.rsplit(".", 1)[0].rpartition(".")
        if host == socket.gethostname() and pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)
