import concurrent.futures
import gzip
import hashlib
import tarfile
import time
import types

import numpy as np
import pytest
from made.archives import entry, tar
from made.disks import largest_file
from made.servers import Server, file, serving
from made.tables import by_table

from keras_vit.export import tar_archive
from keras_vit.export.tar_archive import extract_archive, make_archive, saved_model_folder

pytestmark = pytest.mark.usefixtures("cache")
CONTENTS = {
    "saved_model.pb": b"a program",
    "variables/variables.index": b"an index",
    "variables/variables.data-00000-of-00001": np.random.default_rng(0).bytes(100_000),
    "assets/labels.txt": b"cat\ndog\n",
    "assets.extra/tf_serving_warmup_requests": b"",
}


def write(folder, contents=CONTENTS):
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def read(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "vit" / "1")


def archive_of(path, *entries):
    """Write a .tar.gz of (name or TarInfo, content)."""
    infos = [name if isinstance(name, tarfile.TarInfo) else entry(name) for name, _ in entries]
    path.write_bytes(tar(list(zip(infos, (content for _, content in entries)))))
    return path


def special(name, kind, target=""):
    info = entry(name, kind)
    info.linkname = target
    return info, b""


# Writing -----------------------------------------------------------------------------------------


def test_an_archive_has_no_names_and_times_of_this_machine(folder, tmp_path):
    path = make_archive(folder, tmp_path / "vit.tar.gz")
    head = path.read_bytes()[:10]
    assert head[:2] == b"\x1f\x8b" and head[3] == 0 and head[4:8] == bytes(4)
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == [
        *("assets", "assets/labels.txt", "assets.extra", "assets.extra/tf_serving_warmup_requests"),
        *("saved_model.pb", "variables", "variables/variables.data-00000-of-00001"),
        "variables/variables.index",
    ]
    for member in members:
        assert (member.uid, member.gid, member.uname, member.gname, member.mtime) == (0, 0, "", "", 0)
        assert member.mode == (0o755 if member.isdir() else 0o644)
    with pytest.raises(ValueError, match="vit.tar.gz' exists"):
        make_archive(folder, path)


# Reading -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("folders", [False, True])
def test_other_publishers_archives_are_unpacked(folders, tmp_path):
    """As `tar -cz -C FOLDER .` writes them, with or without entries of folders."""
    entries = [special("./", tarfile.DIRTYPE), special("./variables", tarfile.DIRTYPE)] if folders else []
    entries += [(f"./{name}", content) for name, content in CONTENTS.items()]
    path = archive_of(tmp_path / "vit.tar.gz", *entries)
    assert read(extract_archive(path, tmp_path / "new")) == CONTENTS


HOSTILE = {
    "above": (("../escaped", b"x"), "may lie outside"),
    "above from inside": (("variables/../../escaped", b"x"), "may lie outside"),
    "absolute": (("{here}/escaped", b"x"), "may lie outside"),
    "of Windows": (("C:..\\escaped", b"x"), "may lie outside"),
    "folder above": (special("../escaped", tarfile.DIRTYPE), "may lie outside"),
    "symbolic link": (special("assets/link", tarfile.SYMTYPE, "/etc/passwd"), "neither a plain file"),
    "hard link": (special("assets/link", tarfile.LNKTYPE, "saved_model.pb"), "neither a plain file"),
    "device": (special("assets/null", tarfile.CHRTYPE), "neither a plain file"),
    "twice": (("saved_model.pb", b"another"), "FileExistsError"),
    "folder over a file": (special("saved_model.pb", tarfile.DIRTYPE), "FileExistsError"),
    "file as a folder": (("saved_model.pb/x", b"x"), "FileExistsError|NotADirectoryError"),
    "file over a folder": (("variables", b"x"), "FileExistsError|IsADirectoryError"),
}


def header(name, size, kind=tarfile.REGTYPE):
    """One block of a tar file, which may declare anything."""
    return entry(name, kind, size).tobuf(tarfile.GNU_FORMAT)


def sparse(size):
    """The header of a sparse file without content, as GNU tar writes it."""
    block = bytearray(header("saved_model.pb", 0, tarfile.GNUTYPE_SPARSE))
    block[386:410] = b"%011o\0%011o\0" % (size, 0)  # where the only piece of content lies, of no bytes
    block[483:495] = b"%011o\0" % size
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


GREEDY = {
    "sparse": (sparse(3 << 30), "has a sparse file, 'saved_model.pb'"),
    "declared": (header("saved_model.pb", 2**40), r"declare 1,099,511,627,776; at most 1,073,741,824"),
    "negative": (header("x", -(2**40)) + header("saved_model.pb", 2**40), "header at byte 0 has the number"),
    "long name": (
        header("x", 2**22, tarfile.GNUTYPE_LONGNAME) + bytes(2**22),
        "declares 4194304 bytes of nam",
    ),
    "long names": ((header("x", 2**16, tarfile.GNUTYPE_LONGNAME) + bytes(2**16)) * 64, "headers and padding"),
    "digits": (header("x", 2**18, tarfile.XHDTYPE) + b"1" * 2**18, "declares 262144 bytes of names"),
    "padding": (bytes(2**22), "headers and padding take"),
    "nested headers": (header("x", 0, tarfile.XHDTYPE) * 2_000, "no saved_model.pb at its root"),
}


@by_table("kind", [*HOSTILE, *GREEDY])
def test_nothing_but_plain_files_below_the_folder_is_written_and_as_much_as_declared(kind, tmp_path):
    path = tmp_path / "vit.tar.gz"
    if kind in GREEDY:
        content, message = GREEDY[kind]
        path.write_bytes(gzip.compress(content + bytes(10_240), 1))
    else:
        (name, content), message = HOSTILE[kind]
        name = name.format(here=tmp_path) if isinstance(name, str) else name
        archive_of(path, *CONTENTS.items(), (name, content))
    with pytest.raises(ValueError, match=f"^.*({message}).*$"):  # in one line
        extract_archive(path, tmp_path / "deep" / "new")
    assert [*tmp_path.rglob("*")] == [path, tmp_path / "deep"]


def test_an_archive_larger_than_the_free_space_is_refused_before_it_is_written(folder, tmp_path, monkeypatch):
    path = make_archive(folder, tmp_path / "vit.tar.gz")
    monkeypatch.setattr(tar_archive.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=50_000))
    with pytest.raises(OSError, match="data-00000-of-00001' has 100,000 bytes, and 50,000 are free"):
        extract_archive(path, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_full_disk_ends_in_one_line(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    packed = make_archive(folder, "whole.tar.gz")
    for write_to, source, name in ((make_archive, folder, "m.tar.gz"), (extract_archive, packed, "saved")):
        with pytest.raises(OSError) as error, largest_file(1_000):
            write_to(source, f"out/{name}")
        assert str(error.value) == f"'out/{name}' cannot be written: File too large"
    assert [*(tmp_path / "out").iterdir()] == []


def test_a_damaged_archive_is_refused(folder, tmp_path):
    path = make_archive(folder, tmp_path / "vit.tar.gz")
    whole = path.read_bytes()
    places = [0, 3, *range(10, len(whole) - 8, len(whole) // 10), len(whole) - 8, len(whole) - 1]
    for place in places:
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match=r"vit\.tar\.gz' is no archive of a SavedModel"):
                extract_archive(path, tmp_path / "new")
    assert sorted(tmp_path.iterdir()) == sorted([path, tmp_path / "vit"])


@by_table("content", [b"", b"<html>", gzip.compress(b"no archive" * 100, mtime=0), None])
def test_what_is_no_archive_of_a_saved_model_is_refused(content, tmp_path):
    path = archive_of(tmp_path / "vit.tar.gz", ("vit/saved_model.pb", b"x"))
    reason = "" if content is not None else r".*no saved_model\.pb at its root"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"vit\.tar\.gz' is no archive of a SavedModel" + reason):
        extract_archive(path, tmp_path / "new")
    assert [*tmp_path.iterdir()] == [path]


# Local folders ----------------------------------------------------------------------------------


def test_the_largest_version_of_a_folder_is_taken(tmp_path):
    for name in ("2", "10", "9"):
        write(tmp_path / "export" / "saved_model" / name)
    (tmp_path / "export" / "saved_model" / "11").mkdir()  # nothing in it
    (tmp_path / "export" / "saved_model" / ".writing-12").mkdir()
    expected = tmp_path / "export" / "saved_model" / "10"
    for source in (expected, expected.parent, expected.parents[1], str(expected.parents[1])):
        assert saved_model_folder(source) == expected


def test_an_unknown_scheme_is_refused():
    with pytest.raises(ValueError, match="ftp:// is unknown"):
        saved_model_folder("ftp://host/vit.tar.gz", trust=True)


def test_an_archive_is_unpacked_once_into_the_cache(folder, cache, tmp_path, monkeypatch):
    path = make_archive(folder, tmp_path / "vit.tar.gz")
    found = saved_model_folder(path)
    key = hashlib.sha256(path.read_bytes()).hexdigest()[:32]
    assert found == cache / "saved_models" / key and read(found) == CONTENTS
    monkeypatch.setattr(tar_archive, "extract_archive", None)
    assert saved_model_folder(path.rename(tmp_path / "renamed.tar.gz")) == found


def test_several_at_once_unpack_it_once(folder, tmp_path, monkeypatch):
    path = make_archive(folder, tmp_path / "vit.tar.gz")
    calls = []

    def slow(source, target):
        calls.append(source)
        time.sleep(0.3)
        return extract_archive(source, target)

    monkeypatch.setattr(tar_archive, "extract_archive", slow)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        (found,) = {*pool.map(saved_model_folder, [path] * 4)}
    assert len(calls) == 1 and read(found) == CONTENTS


@pytest.mark.parametrize("url", ["/vit/1.tar.gz", "/vit/1?version=2"])
def test_a_url_is_fetched_once(url, folder, tmp_path):
    content = make_archive(folder, tmp_path / "vit.tar.gz").read_bytes()
    asked = f"{url}&tf-hub-format=compressed" if "?" in url else url
    with serving(Server()) as server:
        server.answers[asked] = file(content)
        digest = hashlib.sha256(content).hexdigest()
        with pytest.raises(ValueError, match="is a SavedModel: a program, .*; if you trust .*trust=True"):
            saved_model_folder(server.url + url, sha256=digest)
        assert server.seen == []
        found = saved_model_folder(server.url + url, trust=True, sha256=digest)
        assert read(found) == CONTENTS
        asked_for = len(server.seen)
        assert saved_model_folder(server.url + url, trust=True) == found
        assert len(server.seen) == asked_for
        with pytest.raises(ValueError, match="is a SavedModel: a program"):  # although it is in the cache
            saved_model_folder(server.url + url)


def test_a_digest_is_that_of_an_archive(folder, cache, tmp_path):
    path = make_archive(folder, tmp_path / "vit.tar.gz")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert read(saved_model_folder(path, sha256=digest)) == CONTENTS
    with pytest.raises(ValueError, match=f"has SHA-256 {digest}; expected 0"):
        saved_model_folder(path, sha256="0" * 64)
    with pytest.raises(ValueError, match="sha256 is that of a file; '.*' is a folder"):
        saved_model_folder(folder, sha256=digest)
