# mypy: disable-error-code="import-not-found, import-untyped"
"""A prefix in an S3-compatible store. It must honour `If-None-Match: *` on PUT (Amazon S3 does since August 2024), and
list what was just written; a store that ignores the condition is found out by `check`, before the first commit.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from kcl_host.spark.faults import reach
from kcl_host.spark.storage import Stored, check_creates


class S3Storage:
    """`uri` is s3://bucket/prefix. `client` is boto3's, by default from the environment; Spark's own access to the same
    place is Spark's configuration, and `scheme` what its file system is called there."""

    def __init__(self, uri: str, *, client: Any = None, scheme: str = "s3a", filesystem: Any = None) -> None:
        """`filesystem` is an Arrow file system for reading footers; by default Arrow's own S3."""
        parts = urlsplit(uri)
        if parts.scheme not in ("s3", "s3a") or not parts.netloc:
            raise ValueError(f"not an S3 place: {uri!r}; s3://bucket/prefix is meant")
        self._bucket = parts.netloc
        self._prefix = parts.path.strip("/") + "/" if parts.path.strip("/") else ""
        self._scheme = scheme
        self._filesystem = filesystem
        if client is None:
            import boto3

            client = boto3.client("s3")
        self._client = client

    def __repr__(self) -> str:
        return f"<S3Storage {self._bucket}/{self._prefix}>"

    def check(self) -> None:
        check_creates(self, "it does not honour If-None-Match: *")

    def read(self, name: str) -> bytes | None:
        with self._errors():
            content: bytes = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"].read()
            return content
        return None

    def create(self, name: str, content: bytes) -> bool:
        reach("staged")
        with self._errors():
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=content, IfNoneMatch="*")
            reach("linked")
            return True
        # A 412 may be the answer to our own try that the client repeated: the chain compares the commit's id.
        return False

    def files(self, folder: str) -> list[str]:
        whole = f"{self._prefix}{folder}/"
        names = [o["Key"].removeprefix(whole) for page in self._pages(whole, "/") for o in page.get("Contents", [])]
        return sorted(name for name in names if name and not name.startswith("."))

    def folders(self, folder: str) -> list[str]:
        whole = f"{self._prefix}{folder}/"
        found = [p["Prefix"] for page in self._pages(whole, "/") for p in page.get("CommonPrefixes", [])]
        return sorted(prefix.removeprefix(whole).rstrip("/") for prefix in found)

    def walk(self, folder: str) -> Iterator[Stored]:
        for page in self._pages(f"{self._prefix}{folder}/", ""):
            for o in page.get("Contents", []):
                yield Stored(o["Key"].removeprefix(self._prefix), int(o["LastModified"].timestamp() * 1000))

    def delete(self, name: str) -> None:
        with self._errors():
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def sync(self, names: list[str]) -> None:
        """An object that can be seen is durable."""

    def now_ms(self) -> int:
        name = f"{self._prefix}.clock-{uuid.uuid4().hex}"
        with self._errors():
            self._client.put_object(Bucket=self._bucket, Key=name, Body=b"")
            at = self._client.head_object(Bucket=self._bucket, Key=name)["LastModified"]
            self._client.delete_object(Bucket=self._bucket, Key=name)
            return int(at.timestamp() * 1000)
        raise OSError(f"{self!r} lost what it was given a moment ago")

    def uri(self, name: str) -> str:
        return f"{self._scheme}://{self._bucket}/{self._prefix}{name}"

    def source(self, name: str) -> Any:
        if self._filesystem is None:
            from pyarrow.fs import S3FileSystem

            self._filesystem = S3FileSystem()
        return self._filesystem.open_input_file(f"{self._bucket}/{self._prefix}{name}")

    def _pages(self, prefix: str, delimiter: str) -> Iterator[dict[str, Any]]:
        with self._errors():
            more = {"Delimiter": delimiter} if delimiter else {}
            yield from self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=prefix, **more
            )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns what boto3 raises into OSError. If an object is missing, or there already, the block just ends."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code not in ("NoSuchKey", "404", "PreconditionFailed", "412"):
                # 409 ConditionalRequestConflict: another create is under way; whether it wins is not known yet.
                raise OSError(f"{self!r}: {error}") from error
        except BotoCoreError as error:
            raise OSError(f"{self!r}: {error}") from error
