import multiprocessing
import time

import pytest
from made.servers import file, serving_files, status

from keras_vit.data import remote_files
from keras_vit.data.shard_cache import folder_beside, opened, read_shards, remote_shards

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
    return remote_shards([f"{server.url}/{number}.tar" for number in range(4)])


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
        remote_shards([])


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
        of = shards(server) if is_remote else [str(path) for path in sorted((tmp_path / "files").iterdir())]
        return [*read_shards(of, key, note)]

    first = values()
    assert first == [[number, "é", 0.1] for number in range(4)] == values() and len(seen) == 4
    assert values("another") == first and len(seen) == 8
    server.answers["/3.tar"] = file(b"\5" * SIZE, tag='"2"')
    (tmp_path / "files" / "3.tar").write_bytes(b"\5" * SIZE)
    assert values()[3][0] == 5 and len(seen) == 9


def test_a_damaged_or_foreign_index_is_read_again(cache, tmp_path):
    path, values = tmp_path / "a.tar", iter(range(9))
    path.touch()
    assert [*read_shards([path], "other", lambda shard: "foreign")] == ["foreign"]
    [foreign] = [index.read_bytes() for index in cache.glob("*.index")]

    def value():
        return next(read_shards([path], "key", lambda shard: next(values)))

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
    assert [*read_shards([tmp_path / "a file"], "key", lambda shard: 1)] == [1]


def test_after_an_error_no_more_shards_are_read(cache, server):
    seen = []

    def fail(shard):
        seen.append(shard)
        time.sleep(0.05)
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        [*read_shards(["setup.py"] * 100, "key", fail)]
    assert len(seen) < 10 and not [*cache.glob("*.index")]
