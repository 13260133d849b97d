"""The chain on an S3-compatible store: moto's, in this process. Amazon's own was not asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from moto import mock_aws

from kcl_host.spark.commit_chain import Chain, chains
from kcl_host.spark.maintenance import rewind
from kcl_host.spark.s3 import S3Storage
from tests.spark.test_commit_chain import KEY, at, commit, files, manifest, paths

pytestmark = pytest.mark.interop  # .ci/run has it.


@pytest.fixture
def client() -> Iterator[Any]:
    import boto3

    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
        client.create_bucket(Bucket="lake")
        yield client


@pytest.fixture(params=["s3://lake/tables/events", "s3a://lake"])
def storage(client: Any, request: pytest.FixtureRequest) -> S3Storage:
    return S3Storage(request.param, client=client)


def test_a_store_that_keeps_the_condition_passes_the_check(storage: S3Storage) -> None:
    storage.check()
    assert storage.folders("_commits") == []


def test_one_that_does_not_is_refused(client: Any) -> None:
    class Overwrites:
        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

        def put_object(self, **arguments: Any) -> Any:
            arguments.pop("IfNoneMatch")
            return client.put_object(**arguments)

    with pytest.raises(OSError, match="does not honour"):
        S3Storage("s3://lake/x", client=Overwrites()).check()


def test_a_chain(storage: S3Storage) -> None:
    of = Chain(storage, KEY, fold_every=3)
    head = commit(of, of.head(), *range(1, 6))
    assert chains(storage) == [KEY]
    stale = Chain(storage, KEY)
    seen = stale.head()
    commit(of, head, 6)
    assert stale.commit(seen, manifest(seen, 7)) is None
    assert paths(of.view()) == files(1, 2, 3, 4, 5, 6)
    rewind(storage, KEY, at(4))
    assert (of.head().generation, paths(of.view())) == (1, files(1, 2, 3, 4))


def test_an_answer_that_was_lost_is_recognised(storage: S3Storage) -> None:
    of = Chain(storage, KEY)
    head = of.head()
    assert of.commit(head, manifest(head, 5)) is not None
    assert of.commit(head, manifest(head, 5)) is not None


def test_what_is_missing_is_none(storage: S3Storage) -> None:
    assert storage.read("nowhere") is None
    assert (storage.files("nowhere"), storage.folders("nowhere")) == ([], [])
    storage.delete("nowhere")


def test_other_errors_are_os_errors(client: Any) -> None:
    with pytest.raises(OSError, match="NoSuchBucket"):
        S3Storage("s3://nobody/x", client=client).create("name", b"")


def test_its_clock(storage: S3Storage) -> None:
    assert storage.now_ms() > 1_600_000_000_000


@pytest.mark.parametrize("uri", ["/data", "s3:///x", "gs://lake/x"])
def test_another_place_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="not an S3 place"):
        S3Storage(uri, client=object())
