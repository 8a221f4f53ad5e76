"""Damaged contents of files."""


def damage_pixels(path):
    """Overwrite bytes within the pixels of a PNG, whose header and end stay whole; the path as text."""
    content = path.read_bytes()
    start = content.index(b"IDAT") + 8
    path.write_bytes(content[:start] + bytes(8) + content[start + 8 :])
    return str(path)


def damaged(content, rng, head=80):
    """The content with other bits, or bytes in its head, cut off, or with a part removed or replaced."""
    changed = bytearray(content)
    start, end = sorted(rng.integers(0, len(content) + 1, 2))
    match rng.integers(6):
        case 0:
            for place in rng.integers(0, len(content), rng.integers(1, 9)):
                changed[place] ^= 1 << int(rng.integers(8))
        case 1:
            for place in rng.integers(0, min(len(content), head), rng.integers(1, 4)):
                changed[place] = rng.choice([0, 1, 127, 128, 255])
        case 2:
            del changed[end:]
        case 3:
            del changed[start:end]
        case 4:
            changed[start:start] = changed[start:end]
        case 5:
            changed[start : start + rng.integers(40)] = rng.bytes(int(rng.integers(40)))
    return bytes(changed)
