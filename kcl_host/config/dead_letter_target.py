"""Reads deadLetterTarget."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from kcl_host.config.settings import DeadLetterTarget

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_QUEUE: Final = re.compile(r"/(\d{12})/[A-Za-z0-9_-]{1,75}(\.fifo)?")
_PREFIX: Final = re.compile(r"[\w!.*'()/-]{0,500}", re.ASCII)
"""Characters that need no escape in any use of S3."""


def dead_letter_target(text: str) -> DeadLetterTarget | str:
    """The target, or what is wrong with the text, as a predicate. Nothing is asked whether it exists."""
    scheme, colon, rest = text.partition(":")
    match scheme if colon else "":
        case "file":
            path = "/" + rest.lstrip("/")
            if not rest.startswith("/") or path == "/" or "\0" in path:
                return "must name a folder by its absolute path, like file:/var/lib/my-app/dead-letters"
            return DeadLetterTarget("file", path.rstrip("/"))
        case "sqs":
            url = "https://" + rest.lstrip("/")
            parts = urlsplit(url)
            if not parts.hostname or not _QUEUE.fullmatch(parts.path) or parts.query or parts.fragment or "@" in rest:
                return "must be the URL of a queue, like sqs://sqs.eu-west-1.amazonaws.com/123456789012/my-app-dead-letters"
            return DeadLetterTarget("sqs", url)
        case "s3":
            bucket, _, prefix = rest.lstrip("/").partition("/")
            if not rest.startswith("//") or not _BUCKET.fullmatch(bucket) or not _PREFIX.fullmatch(prefix):
                return "must be a bucket and a prefix of plain characters, like s3://my-bucket/my-app/dead-letters"
            return DeadLetterTarget("s3", bucket, prefix.strip("/"))
    return "must begin with file:/, sqs:// or s3://"
