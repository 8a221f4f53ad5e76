import multiprocessing
import os
import random
import time

import pytest
from made.servers import file, serving_files, status

from keras_vit.data import remote_files
from keras_vit.data.shard_cache import folder_beside, opened, read_shards, shards_at

SIZE = 1000


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of the cache, which has room for two shards."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERAS_VIT_SHARD_CACHE_GB", "2.5e-6")
    monkeypatch.setattr(remote_files, "WAITS", (0, 0, 0))
    return tmp_path / "cache" / "shards"


@pytest.fixture
def server(tmp_path):
    """A server of four shards, whose bytes are their numbers."""
    (tmp_path / "files").mkdir()
    for number in range(4):
        (tmp_path / "files" / f"{number}.tar").write_bytes(bytes([number]) * SIZE)
    with serving_files(tmp_path / "files") as server:
        yield server


def shards(server):
    return shards_at([f"{server.url}/{number}.tar" for number in range(4)])


def local(*paths):
    return shards_at([str(path) for path in paths])


def read(shard):
    with opened(shard) as file:
        return file.read()


def test_the_cache_keeps_the_shards_that_were_used_last(cache, server):
    of = shards(server)
    for number in (0, 1, 0, 2, 0):
        assert read(of[number]) == bytes([number]) * SIZE
    assert [server.downloads(f"/{number}.tar") for number in range(3)] == [1, 1, 1]
    read(of[1])
    assert server.downloads("/1.tar") == 2 and len([*cache.glob("*.shard")]) == 2


def test_a_shard_that_is_removed_stays_readable_where_it_is_open_also_if_it_exceeds_the_cache(
    cache, server, monkeypatch
):
    monkeypatch.setenv("KERAS_VIT_SHARD_CACHE_GB", "1e-9")
    of = shards(server)
    with opened(of[0]) as first, opened(of[1]) as second:
        assert len([*cache.glob("*.shard")]) == 1
        assert (first.read(), second.read()) == (b"\0" * SIZE, b"\1" * SIZE)


def _read_all(of):
    assert [read(shard)[0] for shard in of] == [0, 1, 2, 3]


def test_processes_that_share_a_cache_fetch_each_shard_once(cache, server, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_SHARD_CACHE_GB", "1")
    for number in range(4):
        answer = server.answers[f"/{number}.tar"]
        server.answers[f"/{number}.tar"] = lambda handler, answer=answer: (time.sleep(0.1), answer(handler))
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_read_all, args=[shards(server)]) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert [server.downloads(f"/{number}.tar") for number in range(4)] == [1] * 4


def test_an_interrupted_download_leaves_nothing(cache, server):
    [shard] = shards(server)[:1]
    server.answers["/0.tar"] = file(b"\0" * SIZE, until=500)
    with pytest.raises(OSError, match="/0.tar' cannot be read: .*, in 3 attempts"):
        opened(shard)
    assert [path.suffix for path in cache.iterdir()] in ([], [".lock"])
    server.answers["/0.tar"] = file(b"\0" * SIZE)
    assert read(shard) == b"\0" * SIZE


@pytest.mark.parametrize("answer", [file(b"\0" * SIZE, tag='"2"'), file(b"\0" * (SIZE + 1))])
def test_a_shard_that_has_changed_is_not_read(answer, cache, server):
    [shard] = shards(server)[:1]
    server.answers["/0.tar"] = answer
    with pytest.raises(OSError, match="/0.tar' has changed since the data set was loaded"):
        opened(shard)
    assert read(shards(server)[0])  # when it is loaded again


def test_a_missing_shard_is_none(cache, server):
    del server.answers["/1.tar"]
    assert [shard is None for shard in shards(server)] == [False, True, False, False]


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "much"])
def test_the_bound_is_a_number_above_0(text, cache, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_SHARD_CACHE_GB", text)
    with pytest.raises(ValueError, match=f"must be a number of gigabytes above 0; got '{text}'"):
        shards_at(["file:///a.tar"])


@pytest.mark.parametrize("missing", [status(404), status(403)])
def test_a_file_beside_a_shard_is_that_of_each_start(missing, cache, server):
    [shard] = shards(server)[:1]
    server.answers["/classes.txt"] = [file(b"cat"), file(b"dog"), missing]
    for content in ("cat", "dog"):
        assert (folder_beside(shard, "classes.txt") / "classes.txt").read_text() == content
    assert not (folder_beside(shard, "classes.txt") / "classes.txt").exists()


@pytest.mark.parametrize("is_remote", [False, True])
def test_what_is_read_is_stored_until_a_shard_changes(is_remote, cache, server, tmp_path):
    seen = []

    def note(shard):
        seen.append(shard)
        return read(shard)[0], "é", 0.1

    def values(key="key"):
        of = shards(server) if is_remote else local(*sorted((tmp_path / "files").iterdir()))
        return [value for value, digest in read_shards(of, key, note)]

    first = values()
    assert first == [[number, "é", 0.1] for number in range(4)] == values() and len(seen) == 4
    assert values("another") == first and len(seen) == 8
    server.answers["/3.tar"] = file(b"\5" * SIZE, tag='"2"')
    (tmp_path / "files" / "3.tar").write_bytes(b"\5" * SIZE)
    assert values()[3][0] == 5 and len(seen) == 9


def digest_of(path):
    [(_, digest)] = read_shards(local(path), "key", lambda shard: 0)
    return digest


@pytest.mark.parametrize("size", [10, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_a_digest_is_of_the_content_and_not_of_the_time(size, cache, tmp_path):
    content, path = random.Random(size).randbytes(size), tmp_path / "a.tar"
    path.write_bytes(content)
    before = digest_of(path)
    path.touch()
    assert digest_of(path) == before
    for place in (0, size - 1):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert digest_of(path) != before


def test_a_file_whose_time_was_restored_is_read_again(cache, tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(b"before")
    times, before = path.stat(), digest_of(path)
    path.write_bytes(b"behind")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert digest_of(path) != before


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_local_shard_that_has_changed_is_not_read(is_renamed, tmp_path):
    path, other = tmp_path / "a.tar", tmp_path / "b.tar"
    path.write_bytes(b"before")
    [shard] = local(path)
    assert read(shard) == b"before"
    if is_renamed:
        times = path.stat()
        other.write_bytes(b"behind")
        os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
        other.rename(path)
    else:
        path.write_bytes(b"behind")
        os.utime(path, ns=(1, 1))
    with pytest.raises(OSError, match="a.tar' has changed since the data set was loaded"):
        opened(shard)


def test_a_damaged_or_foreign_index_is_read_again(cache, tmp_path):
    (tmp_path / "a.tar").touch()
    shard, values = local(tmp_path / "a.tar"), iter(range(9))
    assert next(read_shards(shard, "other", lambda shard: "foreign"))[0] == "foreign"
    [foreign] = [index.read_bytes() for index in cache.glob("*.index")]

    def value():
        return next(read_shards(shard, "key", lambda shard: next(values)))[0]

    assert value() == value() == 0
    [index] = [index for index in cache.glob("*.index") if index.read_bytes() != foreign]
    whole = index.read_bytes()
    damaged = (b"", whole[:-9], whole[:20] + bytes([whole[20] ^ 1]) + whole[21:], foreign)
    for number, content in enumerate(damaged, 1):
        index.write_bytes(content)
        assert value() == value() == number


def test_data_are_read_without_a_cache(tmp_path, monkeypatch):
    (tmp_path / "a file").touch()
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "a file"))
    assert next(read_shards(local(tmp_path / "a file"), "key", lambda shard: 1))[0] == 1


def test_after_an_error_no_more_shards_are_read(cache, server):
    seen = []

    def fail(shard):
        seen.append(shard)
        time.sleep(0.05)
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        [*read_shards(local("setup.py") * 100, "key", fail)]
    assert len(seen) < 10 and not [*cache.glob("*.index")]
