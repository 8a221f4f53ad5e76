"""The headers of tar files, of which nothing is believed that the file cannot hold."""

import os
from typing import NamedTuple

BLOCK = 512  # bytes
MAX_EXTENDED = 1 << 16  # bytes of the records before an entry: its long name, or what pax adds
FILES, FOLDER, SPARSE = (b"\0", b"0", b"7"), b"5", b"S"
WITHOUT_DATA = b"123456"  # links, devices and folders
# Writers fill up a multiple of one of these: of 20 blocks, unless they are asked for another number.
RECORDS = (*range(BLOCK, 21 * BLOCK, BLOCK), *(BLOCK << power for power in range(5, 12)))


class TarEntry(NamedTuple):
    """An entry of a tar file: its name, first byte and number of bytes; whether it is a file, or a folder."""

    name: str
    first: int
    size: int
    is_file: bool = True
    is_folder: bool = False


def tar_entries(file):
    """Read the entries of a tar file in V7, ustar, GNU or pax format.

    Args:
        file: An open binary file.

    Yields:
        `TarEntry`.

    Raises:
        ValueError: if a header is damaged, the file is cut off, or something follows its end.

    Example:
        >>> import tarfile
        >>> with tarfile.open(tmp / "a.tar", "w") as tar:
        ...     tar.addfile(tarfile.TarInfo("0.cls"))
        >>> with open(tmp / "a.tar", "rb") as file:
        ...     [(entry.name, entry.first, entry.size) for entry in tar_entries(file)]
        [('0.cls', 512, 0)]
    """
    number, length = file.fileno(), os.fstat(file.fileno()).st_size
    offset = yield from read_headers(lambda first, size: os.pread(number, size, first), length)
    _check_end(number, offset, length)


def read_headers(read, length=None):
    """Read the headers of a tar file one after another.

    Args:
        read: A function from the first byte and the number of bytes to bytes there. The first bytes ascend.
        length: That of the file; None for a stream, which may end without two blocks of zeros.

    Yields:
        `TarEntry`.

    Returns:
        The first byte of the end.

    Raises:
        ValueError: if a header is damaged, or the file is cut off.

    Source: POSIX.1-2017, `pax`, "pax Interchange Format" and "ustar Interchange Format"; GNU tar's manual,
    "Basic Tar Format".
    """
    offset, for_all, for_next = 0, {}, {}  # The dicts have what extended headers say of entries.
    while (header := read(offset, BLOCK)) != bytes(BLOCK):
        if not header and length is None:
            break
        if len(header) < BLOCK:
            raise ValueError(f"is cut off at byte {offset + len(header)}, without an end")
        _check_sum(header, offset)
        type, size = header[156:157], _number(header[124:136], offset)
        first = offset + BLOCK
        if type in b"xXgLK":
            if size > MAX_EXTENDED:
                raise ValueError(f"is damaged: the header at byte {offset} declares {size} bytes of names")
            content = read(first, size)
            if type in b"xX":
                for_next |= _records(content, offset)
            elif type == b"g":
                for_all |= _records(content, offset)
            elif type == b"L":
                for_next[b"path"] = content.partition(b"\0")[0]
        else:
            about = for_all | for_next
            for_next = {}
            name = about.get(b"path", _name(header)).decode("utf-8", "surrogateescape")
            if type == SPARSE or any(key.startswith(b"GNU.sparse") for key in about):
                raise ValueError(f"has a sparse file, {name!r}")
            if type in WITHOUT_DATA:
                size = 0
            elif b"size" in about:
                size = _decimal(about[b"size"], offset)
            if length is not None and first + size > length:
                raise ValueError(f"is cut off in {name!r}")
            is_folder = type == FOLDER or type in FILES and name.endswith("/")
            yield TarEntry(name.rstrip("/"), first, size, type in FILES and not is_folder, is_folder)
        offset = first + -(-size // BLOCK) * BLOCK
    if for_next:
        raise ValueError(f"is damaged: no file follows its name at byte {offset}")
    return offset


def _check_sum(header, offset):
    rest = header[:148] + b" " * 8 + header[156:]
    difference = _number(header[148:156], offset) - sum(rest)
    # Some writers added signed bytes.
    if difference and difference != -256 * sum(byte > 127 for byte in rest):
        raise ValueError(f"is damaged: the header at byte {offset} has another checksum")


def _number(field, offset):
    """A number of a header: octal digits, or after a byte of 128 a binary number."""
    if field[0] == 128:
        return int.from_bytes(field[1:], "big")
    text = field.partition(b"\0")[0].strip(b" ")
    if text.strip(b"01234567"):
        raise ValueError(f"is damaged: the header at byte {offset} has the number {field!r}")
    return int(text or b"0", 8)


def _decimal(text, offset):
    if not text.isdigit() or len(text) > 20:
        raise ValueError(f"is damaged: the header at byte {offset} has the number {text[:20]!r}")
    return int(text)


def _name(header):
    name, prefix = header[:100].partition(b"\0")[0], header[345:500].partition(b"\0")[0]
    return b"/".join((prefix, name)) if prefix and header[257:263] == b"ustar\0" else name


def _records(content, offset):
    """The values of pax records, each "LENGTH KEY=VALUE" and a line feed."""
    values, start = {}, 0
    while start < len(content):
        digits = content[start : start + 6].partition(b" ")[0]
        stop = start + (int(digits) if digits.isdigit() else 0)
        key, equals, value = content[start + len(digits) + 1 : stop - 1].partition(b"=")
        if not equals or content[stop - 1 : stop] != b"\n":
            raise ValueError(f"is damaged: the header at byte {offset} has no pax records")
        values[key], start = value, stop
    return values


def _check_end(number, offset, length):
    """Raise ValueError unless zeros from a byte on fill up two blocks, and then the last record."""
    padding = length - offset - 2 * BLOCK
    is_filled = padding <= 0 or any(padding < size and length % size == 0 for size in RECORDS)
    tail = os.pread(number, RECORDS[-1] + 2 * BLOCK + 1, offset)
    if tail.strip(b"\0"):
        raise ValueError(
            f"has zeros at byte {offset}, as at its end, but {length} bytes: it is incomplete, or several "
            "tar files were joined"
        )
    if not is_filled:
        raise ValueError(f"is cut off: it has only zeros from byte {offset} on, to byte {length}")
