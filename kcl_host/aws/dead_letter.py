"""Where records go that were taken out of their shard's way: a folder, a queue or a bucket.

Any thread may put; a client is made with the first letter, since most hosts never write one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, Final

from kcl_host.aws.clients import dead_letter_client
from kcl_host.aws.faults import Resource, translated
from kcl_host.config.settings import Settings
from kcl_host.errors import AccessError, ConfigurationError, Unavailable
from kcl_host.model.dead_letter import DeadLetter

_QUEUE_REGION: Final = re.compile(r"https://sqs(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/")


def dead_letters_of(settings: Settings) -> FileDeadLetters | SqsDeadLetters | S3DeadLetters | None:
    """None when the configuration names no target. Makes no request."""
    target = settings.poison.target
    if target is None:
        return None
    if target.kind == "file":
        return FileDeadLetters(target.place)
    if target.kind == "sqs":
        found = _QUEUE_REGION.match(target.place)
        region = found[1] if found else None
        return SqsDeadLetters(lambda: dead_letter_client("sqs", settings, region), target.place)
    return S3DeadLetters(lambda: dead_letter_client("s3", settings), target.place, target.prefix)


class FileDeadLetters:
    """One line of JSON each, in a file for each day (UTC) of the letter's time; only the owner may read it.

    Nothing is ever deleted. Several processes may share the folder: each appends under the lock of the file. What a
    full disk leaves of a line is cut off, what a crash leaves of it is ended before the next one; it is no JSON then.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __repr__(self) -> str:
        return f"<FileDeadLetters {self._folder}>"

    def put(self, letter: DeadLetter) -> None:
        """Raises Unavailable, AccessError."""
        path = os.path.join(self._folder, f"dead-letters-{letter.time[:10]}.jsonl")
        try:
            _make_folder(self._folder)
            with _appending(path) as fd:
                _append(fd, letter.line().encode() + b"\n")
            _sync(self._folder)
        except PermissionError as error:
            raise AccessError(f"dead letter not written: {error}") from error
        except OSError as error:
            raise Unavailable(f"dead letter not written: {error}") from error


class _OfService:
    """The client, made once."""

    def __init__(self, new_client: Callable[[], Any]) -> None:
        self._new_client = new_client
        self._client: Any = None
        self._lock = threading.Lock()
        """Guards `_client`."""

    def get(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._new_client()
            return self._client


class SqsDeadLetters:
    """One message each. A FIFO queue gets those of a shard in order, and drops repetitions within five minutes."""

    def __init__(self, new_client: Callable[[], Any], queue_url: str) -> None:
        self._client = _OfService(new_client)
        self._queue_url = queue_url

    def __repr__(self) -> str:
        return f"<SqsDeadLetters {self._queue_url}>"

    def put(self, letter: DeadLetter) -> None:
        """Raises Throttled, Unavailable (a message too large too), AccessError, ConfigurationError."""
        fifo = {}
        if self._queue_url.endswith(".fifo"):
            key = sha256(f"{letter.application}/{letter.name}".encode()).hexdigest()
            fifo = {"MessageGroupId": letter.shard, "MessageDeduplicationId": key}
        with translated(Resource("sqs", self._queue_url)):
            self._client.get().send_message(QueueUrl=self._queue_url, MessageBody=letter.line(), **fifo)


class S3DeadLetters:
    """One object each: PREFIX/stream/shard/sequence number-sub-sequence number.json. A repetition replaces it."""

    def __init__(self, new_client: Callable[[], Any], bucket: str, prefix: str) -> None:
        self._client = _OfService(new_client)
        self._bucket = bucket
        self._prefix = prefix

    def __repr__(self) -> str:
        return f"<S3DeadLetters {self._bucket}/{self._prefix}>"

    def put(self, letter: DeadLetter) -> None:
        """Raises Throttled, Unavailable, AccessError, ConfigurationError."""
        key = "/".join(part for part in (self._prefix, f"{letter.name}.json") if part)
        with translated(Resource("s3", self._bucket), {"SlowDown": Unavailable, "NoSuchBucket": ConfigurationError}):
            self._client.get().put_object(
                Bucket=self._bucket, Key=key, Body=letter.line().encode(), ContentType="application/json"
            )


# Files


def _make_folder(folder: str) -> None:
    """With its missing parents, each of which must survive a crash too."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    _make_folder(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    _sync(parent)


@contextlib.contextmanager
def _appending(path: str) -> Iterator[int]:
    """The file, for us alone as long as the block lasts."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def _append(fd: int, line: bytes) -> None:
    """Writes the line durably, or nothing."""
    end = os.fstat(fd).st_size
    if end and os.pread(fd, 1, end - 1) != b"\n":
        line = b"\n" + line
    try:
        left = memoryview(line)
        while left:
            left = left[os.write(fd, left) :]
        os.fsync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, end)
        raise


def _sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
