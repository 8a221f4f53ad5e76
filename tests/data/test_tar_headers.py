import io
import struct
import tarfile
import time

import pytest
from made.tables import by_table

from keras_vit.data.tar_headers import tar_entries

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
NAMES = ("a.png", f"{'f' * 90}/{'g' * 60}/b.png", "ä.cls", f"{'folder/' * 12}c.txt")


def write(path, names=NAMES, form=tarfile.GNU_FORMAT, sizes=(0, 511, 512, 513)):
    with tarfile.open(path, "w", format=form) as tar:
        for name, size in zip(names, sizes):
            info = tarfile.TarInfo(name)
            info.size = size
            tar.addfile(info, io.BytesIO(bytes([1]) * size))
    return path


def entries(path):
    with open(path, "rb") as file:
        return [*tar_entries(file)]


@pytest.mark.parametrize("form", FORMATS)
def test_entries_are_those_of_the_standard_library_in_each_format(form, tmp_path):
    path = write(tmp_path / "a.tar", form=FORMATS[form])
    with tarfile.open(path, "a", format=FORMATS[form]) as tar:
        for kind, target in ((tarfile.DIRTYPE, ""), (tarfile.SYMTYPE, "t" * 90), (tarfile.LNKTYPE, "a.png")):
            info = tarfile.TarInfo(f"{kind[0]}")
            info.type, info.linkname = kind, target
            tar.addfile(info)
    with tarfile.open(path) as tar:
        expected = [(of.name, of.offset_data, of.size, of.isfile(), of.isdir()) for of in tar]
    assert [tuple(entry) for entry in entries(path)] == expected and len(expected) == 7


@by_table("zeros", [512, 1024, 7 * 512, 64 * 512])
def test_the_end_of_other_writers_is_accepted(zeros, tmp_path):
    path = write(tmp_path / "a.tar", sizes=(0, 0, 0, 0), names="abcd")
    path.write_bytes(path.read_bytes()[:2048] + bytes(zeros - (2048 if zeros > 1024 else 0)))
    assert len(entries(path)) == 4


def header(name=b"x.png", size=b"00000000000\0", type=b"0"):
    """A header with any values, and its checksum."""
    block = bytearray(512)
    block[: len(name)], block[124:136], block[156:157] = name, size, type
    block[148:156], block[257:265] = b" " * 8, b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def extended(type, content):
    padding = bytes(-len(content) % 512)
    return header(b"pax", b"%011o\0" % len(content), type) + content + padding


NEGATIVE = b"\xff" * 4 + struct.pack(">q", -512)
SIZE = b"14 size=-1024\n"
HOSTILE = {
    "negative": (header(size=NEGATIVE), "the header at byte 0 has the number"),
    "negative octal": (header(size=b"-0000000512\0"), "the header at byte 0 has the number"),
    "no number": (header(size=b"0000000009x\0"), "the header at byte 0 has the number"),
    "huge": (header(size=b"\x80" + b"\xff" * 11), "is cut off in 'x.png'"),
    "negative in pax": (extended(b"x", SIZE) + header(), "has the number b'-1024'"),
    "digits in pax": (extended(b"x", b"1" * 60_000) + header(), "the header at byte 0 has no pax records"),
    "more digits": (extended(b"x", b"1" * 200_000) + header(), "declares 200000 bytes of names"),
    "record of no length": (extended(b"x", b"0 a=b\n") + header(), "has no pax records"),
    "record beyond": (extended(b"x", b"99 a=b\n") + header(), "has no pax records"),
    "sparse": (header(type=b"S"), "has a sparse file, 'x.png'"),
    "sparse in pax": (extended(b"x", b"22 GNU.sparse.major=1\n") + header(), "has a sparse file, 'x.png'"),
    "names alone": (extended(b"L", b"x\0") * 3000, "no file follows its name"),
    "no header": (b"<html>".ljust(512, b" "), "the header at byte 0 has another checksum"),
    "another checksum": (header().replace(b"x.png", b"y.png"), "the header at byte 0 has another checksum"),
}


@by_table("case", HOSTILE)
def test_a_hostile_header_is_refused_at_once(case, tmp_path):
    content, message = HOSTILE[case]
    (tmp_path / "a.tar").write_bytes(content + bytes(1024))
    start = time.process_time()
    with pytest.raises(ValueError, match=message) as refused:
        entries(tmp_path / "a.tar")
    assert "\n" not in str(refused.value) and time.process_time() - start < 2


@pytest.fixture
def shard(tmp_path):
    """A tar file of 20 entries of 700 bytes, and its content."""
    path = write(tmp_path / "a.tar", map(str, range(20)), sizes=[700] * 20)
    return path, path.read_bytes()


@pytest.mark.parametrize("first", [0, 8, 19])
def test_zeros_in_place_of_a_header_are_no_end(first, shard):
    path, content = shard
    start = 1536 * first
    path.write_bytes(content[:start] + bytes(1024) + content[start + 1024 :])
    with pytest.raises(ValueError, match=f"zeros at byte {start}, as at its end, but {len(content)} bytes"):
        entries(path)


def test_a_file_that_was_made_long_before_it_was_copied_is_cut_off(shard):
    path, content = shard
    path.write_bytes(content[: 1536 * 4] + bytes(len(content) - 1536 * 4))
    with pytest.raises(ValueError, match=f"only zeros from byte {1536 * 4} on, to byte {len(content)}"):
        entries(path)


def test_a_second_tar_file_that_follows_is_refused(shard):
    path, content = shard
    path.write_bytes(content + content)
    with pytest.raises(ValueError, match="it is incomplete, or several tar files were joined"):
        entries(path)
