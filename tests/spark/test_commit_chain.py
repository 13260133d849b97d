"""The chain on a real file system, and its rules one by one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kcl_host.spark import chain
from kcl_host.spark.chain import ChainKey, DataFile, Manifest, View, key_of
from kcl_host.spark.commit_chain import HEAD_LIMIT_S, Chain, Head, Rewound, chains
from kcl_host.spark.maintenance import rewind, vacuum
from kcl_host.spark.position import Position, encode
from kcl_host.spark.storage import LocalStorage

KEY = ChainKey(application="app", stream="numbers", shard="shardId-1")
DAY_S = 24 * 3600.0


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def at(number: int) -> Position:
    return Position(number, 0)


def manifest(head: Head, end: int, commit: str = "") -> Manifest:
    """With one file of one row that is called as its end."""
    return Manifest(
        commit=commit or f"commit-{end}",
        start=encode(head.position),
        end=encode(at(end)),
        records=1,
        tables={"table": [DataFile(path=f"data/{end}.parquet", rows=1, bytes=1, schema="s")]},
        schemas={"s": "{}"},
    )


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


def commit(of: Chain, head: Head, *ends: int) -> Head:
    for end in ends:
        after = of.commit(head, manifest(head, end))
        assert after is not None
        head = after
    return head


def paths(view: View) -> list[str]:
    return [file.path for file in view.tables.get("table", [])]


def files(*ends: int) -> list[str]:
    return [f"data/{end}.parquet" for end in ends]


def test_commits_are_read_in_order(storage: LocalStorage) -> None:
    of = Chain(storage, KEY)
    head = commit(of, of.head(), 5, 7, 100)
    assert head.position == at(100)
    view = Chain(storage, KEY).view()
    assert (view.head, view.commits, view.records, paths(view)) == (at(100), 3, 3, files(5, 7, 100))


def test_of_two_writers_with_one_head_one_wins(storage: LocalStorage) -> None:
    one, other = Chain(storage, KEY), Chain(storage, KEY)
    head, same = one.head(), other.head()
    commit(one, head, 5)
    assert other.commit(same, manifest(same, 6)) is None
    assert paths(other.view()) == files(5)


def test_threads_in_a_race(storage: LocalStorage) -> None:
    """Each round one of the writers commits, on links that are really exclusive."""
    rounds, barrier, won = 50, threading.Barrier(3), [0, 0, 0]

    def write(number: int) -> None:
        of = Chain(storage, KEY)
        for turn in range(rounds):
            head = of.head()
            barrier.wait()
            if of.commit(head, manifest(head, 10 * turn + number + 1, f"{number}-{turn}")) is not None:
                won[number] += 1
            barrier.wait()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(won) == rounds
    assert Chain(storage, KEY).view().commits == rounds


def test_an_answer_that_was_lost_is_recognised(storage: LocalStorage) -> None:
    of = Chain(storage, KEY)
    head = of.head()
    ours = manifest(head, 5)
    assert of.commit(head, ours) is not None
    again = of.commit(head, ours)
    assert again is not None and again.position == at(5)


def test_a_head_seen_too_long_ago_is_not_built_upon(storage: LocalStorage) -> None:
    """Vacuum may have taken the manifest that stands there, and the commit would be seen by nobody."""
    clock = Clock()
    of = Chain(storage, KEY, clock=clock)
    head = of.head()
    clock.now_s += HEAD_LIMIT_S + 1
    assert of.commit(head, manifest(head, 5)) is None
    commit(of, of.head(), 5)


def test_one_s_own_commit_renews_the_head(storage: LocalStorage) -> None:
    clock = Clock()
    of = Chain(storage, KEY, clock=clock)
    head = of.head()
    for end in (5, 6, 7):
        clock.now_s += HEAD_LIMIT_S * 0.9
        head = commit(of, head, end)


@pytest.mark.parametrize("end", [5, 4])
def test_a_commit_that_does_not_end_above_the_head_is_refused(storage: LocalStorage, end: int) -> None:
    of = Chain(storage, KEY)
    head = commit(of, of.head(), 5)
    with pytest.raises(ValueError, match="on the head"):
        of.commit(head, manifest(head, end))


def test_folding_changes_nothing_for_readers(storage: LocalStorage) -> None:
    of = Chain(storage, KEY, fold_every=3)
    commit(of, of.head(), *range(1, 9))
    assert storage.files("_commits/app/numbers/shardId-1/layouts") == [
        "000000.000000001.json", "000000.000000002.json"
    ]  # fmt: skip
    view = of.view()
    assert (view.layout, view.commits, view.commits_since_layout, paths(view)) == (2, 8, 2, files(*range(1, 9)))


def test_a_layout_from_an_older_one_comes_too_late(storage: LocalStorage) -> None:
    of = Chain(storage, KEY, fold_every=100)
    commit(of, of.head(), 1, 2)
    stale = chain.fold(of.view())
    replaced = {"table": (frozenset(files(1, 2)), [DataFile(path="data/both", rows=2, bytes=2, end=encode(at(2)))])}
    assert of.publish(chain.compacted(of.view(), replaced, {}))
    assert not of.publish(stale)
    assert paths(of.view()) == ["data/both"]


def test_files_are_not_compacted_twice(storage: LocalStorage) -> None:
    of = Chain(storage, KEY)
    commit(of, of.head(), 1, 2)
    replaced = {"table": (frozenset(files(1, 2)), [DataFile(path="data/both", rows=2, bytes=2, end=encode(at(2)))])}
    assert of.publish(chain.compacted(of.view(), replaced, {}))
    with pytest.raises(ValueError, match="no longer has the files"):
        chain.compacted(of.view(), replaced, {})


# Rewinds


def test_a_rewind_takes_out_what_is_above(storage: LocalStorage) -> None:
    of = Chain(storage, KEY)
    commit(of, of.head(), 5, 7, 9)
    rewind(storage, KEY, at(7))
    head = of.head()
    assert (head.position, head.generation, paths(of.view())) == (at(7), 1, files(5, 7))
    commit(of, head, 8)
    assert paths(of.view()) == files(5, 7, 8)


def test_a_rewind_of_a_rewind(storage: LocalStorage) -> None:
    of = Chain(storage, KEY)
    commit(of, of.head(), 5, 7, 9)
    rewind(storage, KEY, at(7))
    commit(of, of.head(), 8)
    rewind(storage, KEY, at(5))
    assert (of.head().generation, paths(of.view())) == (2, files(5))
    rewind(storage, KEY, None)
    head = of.head()
    assert (head.position, head.has_history, paths(of.view())) == (None, True, [])


def test_who_commits_to_a_generation_that_was_left_is_told(storage: LocalStorage) -> None:
    of = Chain(storage, KEY)
    head = commit(of, of.head(), 5, 7)
    rewind(storage, KEY, at(5))
    with pytest.raises(Rewound):
        of.commit(head, manifest(head, 9))
    assert paths(of.view()) == files(5)


@pytest.mark.parametrize("to", [at(8), at(3)])
def test_no_rewind_above_the_head_or_into_a_file(storage: LocalStorage, to: Position) -> None:
    of = Chain(storage, KEY)
    commit(of, of.head(), 2, 7)
    with pytest.raises(ValueError, match="cannot rewind"):
        rewind(storage, KEY, to)
    assert of.head().generation == 0


def test_a_rewind_after_a_compaction_stops_at_the_ends_of_its_files(storage: LocalStorage) -> None:
    of = Chain(storage, KEY)
    commit(of, of.head(), 2, 4, 6)
    both = DataFile(path="data/both", rows=2, bytes=2, schema="s", start=encode(None), end=encode(at(4)))
    assert of.publish(chain.compacted(of.view(), {"table": (frozenset(files(2, 4)), [both])}, {}))
    with pytest.raises(ValueError, match="stand in one file"):
        rewind(storage, KEY, at(2))
    rewind(storage, KEY, at(4))
    assert paths(of.view()) == ["data/both"]


# Starts


def test_a_first_start_may_be_anywhere() -> None:
    assert chain.start_problem(View(), at(100)) is None


@pytest.mark.parametrize("view", [View(head=at(7)), View(generation=1)])
def test_a_checkpoint_above_the_head_is_a_gap(view: View) -> None:
    problem = chain.start_problem(view, at(8))
    assert problem is not None and "above the head" in problem


@pytest.mark.parametrize("checkpoint", [None, at(6), at(7)])
def test_a_checkpoint_up_to_the_head_is_none(checkpoint: Position | None) -> None:
    assert chain.start_problem(View(head=at(7)), checkpoint) is None


def test_a_stream_made_anew_has_its_own_chain(storage: LocalStorage) -> None:
    old, new = (msgspec.structs.replace(KEY, stream_created_s=created) for created in (100, 200))
    commit(Chain(storage, old), Chain(storage, old).head(), 5)
    assert not Chain(storage, new).head().has_history
    assert Chain(storage, new).check_epoch() is None


@pytest.mark.parametrize(("first", "second"), [(None, 200), (200, None)])
def test_one_stream_with_and_without_its_creation_time_is_refused(
    storage: LocalStorage, first: int | None, second: int | None
) -> None:
    one, other = (msgspec.structs.replace(KEY, stream_created_s=created) for created in (first, second))
    commit(Chain(storage, one), Chain(storage, one).head(), 5)
    problem = Chain(storage, other).check_epoch()
    assert problem is not None and "always or never" in problem


@pytest.mark.parametrize(
    "key",
    [
        ChainKey(application="a/b", stream="123456789012:numbers:1700000000", shard="shardId-000000000001"),
        ChainKey(application="..", stream="_x y", shard=".", stream_created_s=5),
        ChainKey(application="приложение", stream="a@b", shard="s"),
    ],
)
def test_any_name_has_a_folder_of_its_own(key: ChainKey, storage: LocalStorage) -> None:
    assert key_of(key.folder) == key
    commit(Chain(storage, key), Chain(storage, key).head(), 5)
    assert chains(storage) == [key]


# What is on the disk


def test_a_manifest_is_whole_or_not_there(storage: LocalStorage, tmp_path: Path) -> None:
    """What a process that was killed while it wrote leaves behind is not taken for a manifest."""
    of = Chain(storage, KEY)
    head = commit(of, of.head(), 5)
    folder = tmp_path / "_commits/app/numbers/shardId-1/manifests/000000"
    (folder / ".unfinished-0123").write_bytes(b'{"format":1,')
    assert paths(of.view()) == files(5)
    commit(of, head, 6)


def test_a_file_system_without_links_is_refused(storage: LocalStorage, tmp_path: Path) -> None:
    class Unlinked(LocalStorage):
        def create(self, name: str, content: bytes) -> bool:
            raise PermissionError("Operation not permitted")

    storage.check()
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="needs hard links"):
        Unlinked(tmp_path).check()


def test_what_is_no_manifest_is_named(storage: LocalStorage, tmp_path: Path) -> None:
    of = Chain(storage, KEY)
    commit(of, of.head(), 5)
    (tmp_path / "_commits/app/numbers/shardId-1" / chain.manifest_name(0, at(5))).write_text("oops")
    with pytest.raises(ValueError, match=r"manifests/000000/0+5\..* is not a manifest"):
        of.view()


def test_a_newer_format_is_not_read(storage: LocalStorage) -> None:
    of = Chain(storage, KEY)
    head = of.head()
    of.commit(head, msgspec.structs.replace(manifest(head, 5), format=2))
    with pytest.raises(ValueError, match="has format 2"):
        of.view()


def age(root: Path, choose: Callable[[str], bool] = lambda name: True) -> None:
    for path in root.rglob("*"):
        if path.is_file() and choose(path.relative_to(root).as_posix()):
            os.utime(path, (1, 1))


def put_data(storage: LocalStorage, *names: str) -> None:
    for name in names:
        assert storage.create(name, b"rows")


def test_vacuum_takes_what_nobody_names_once_it_is_old(storage: LocalStorage, tmp_path: Path) -> None:
    of = Chain(storage, KEY)
    put_data(storage, *files(5, 6), "data/shard/orphan/x.parquet", "data/shard/young/x.parquet")
    commit(of, of.head(), 5, 6)
    age(tmp_path, lambda name: "young" not in name)
    assert vacuum(storage, age_s=DAY_S) == 1
    assert sorted(p.relative_to(tmp_path).as_posix() for p in (tmp_path / "data").rglob("*.parquet")) == [
        *files(5, 6), "data/shard/young/x.parquet"
    ]  # fmt: skip
    assert paths(of.view()) == files(5, 6)


def test_vacuum_keeps_what_was_compacted_a_moment_ago(storage: LocalStorage, tmp_path: Path) -> None:
    """A reader that listed the old files is still reading them."""
    of = Chain(storage, KEY)
    put_data(storage, *files(1, 2), "data/both")
    commit(of, of.head(), 1, 2)
    replaced = {"table": (frozenset(files(1, 2)), [DataFile(path="data/both", rows=2, bytes=2, end=encode(at(2)))])}
    assert of.publish(chain.compacted(of.view(), replaced, {}))
    age(tmp_path, lambda name: "layouts" not in name)
    assert vacuum(storage, age_s=DAY_S) == 0
    age(tmp_path)
    assert vacuum(storage, age_s=DAY_S) == 4, "two manifests and two files"
    assert paths(of.view()) == ["data/both"]
    assert of.head().position == at(2)


def test_vacuum_keeps_the_manifests_that_no_layout_stands_for(storage: LocalStorage, tmp_path: Path) -> None:
    of = Chain(storage, KEY, fold_every=3)
    head = commit(of, of.head(), 1, 2, 3, 4, 5)
    age(tmp_path)
    assert vacuum(storage, age_s=DAY_S) == 3
    assert paths(of.view()) == files(1, 2, 3, 4, 5)
    commit(of, head, 6)


def test_vacuum_after_a_rewind(storage: LocalStorage, tmp_path: Path) -> None:
    of = Chain(storage, KEY)
    put_data(storage, *files(5, 7))
    commit(of, of.head(), 5, 7)
    rewind(storage, KEY, at(5))
    age(tmp_path)
    assert vacuum(storage, age_s=DAY_S) == 3
    assert (tmp_path / "data/5.parquet").exists() and not (tmp_path / "data/7.parquet").exists()
    assert of.head().position == at(5)


def test_vacuum_refuses_an_age_that_writers_rely_on(storage: LocalStorage) -> None:
    with pytest.raises(ValueError, match="too low"):
        vacuum(storage, age_s=HEAD_LIMIT_S)


def test_no_hole_in_a_view() -> None:
    with pytest.raises(ValueError, match="cannot follow"):
        chain.extend(View(head=at(1)), [Manifest(commit="x", start=encode(at(2)), end=encode(at(3)), records=1)])
