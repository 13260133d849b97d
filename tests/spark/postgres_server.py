"""A throw-away PostgreSQL on a loopback port, from the programs that are installed."""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

INITDB = ("--auth=scram-sha-256", "--no-sync", "--encoding=UTF8", "--locale=C")
PASSWORD = "s3cret-of-the-table"


def programs() -> Path | None:
    """The folder of initdb and postgres; None when they are not installed. Debian keeps them off the PATH."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return folders[-1] if folders and (folders[-1] / "postgres").exists() else None


def needed() -> Iterator[str]:
    """Body of a fixture: the connection string, or a skip that says what is missing."""
    pytest.importorskip("psycopg", reason="needs psycopg: pip install 'kcl-host[spark-postgres]'")
    if programs() is None:
        pytest.skip("needs PostgreSQL's server: apt-get install postgresql")
    with postgres() as conninfo:
        yield conninfo


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """Its connection string. PostgreSQL does not run as root: then it is another user's, in a folder of that user."""
    bin_folder = programs()
    assert bin_folder is not None
    user = "postgres" if os.getuid() == 0 else getpass.getuser()
    owner = pwd.getpwnam(user)
    with tempfile.TemporaryDirectory(prefix="kcl-host-postgres-") as folder:
        data, secret, log = Path(folder, "data"), Path(folder, "secret"), Path(folder, "log")
        secret.write_text(PASSWORD)
        for path in (Path(folder), secret):
            os.chown(path, owner.pw_uid, owner.pw_gid)
        as_user = {"user": owner.pw_uid, "group": owner.pw_gid, "cwd": folder} if os.getuid() == 0 else {}
        with log.open("wb") as output:
            subprocess.run(
                [bin_folder / "initdb", "-D", data, "-U", "writer", f"--pwfile={secret}", *INITDB],
                stdout=output,
                stderr=output,
                check=True,
                **as_user,  # type: ignore[call-overload]
            )
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                port = listener.getsockname()[1]
            settings = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
            words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
            server = subprocess.Popen(
                [bin_folder / "postgres", "-D", data, *words], stdout=output, stderr=output, **as_user
            )
        try:
            _wait(port, server, log)
            yield f"host=127.0.0.1 port={port} user=writer dbname=postgres password={PASSWORD}"
        finally:
            server.send_signal(signal.SIGINT)  # a fast shutdown: clients are sent away
            server.wait(20)


def _wait(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg

    deadline_s = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(f"host=127.0.0.1 port={port} user=writer dbname=postgres password={PASSWORD}").close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline_s:
                raise AssertionError(log.read_text()) from None
            time.sleep(0.05)
