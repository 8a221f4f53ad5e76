"""The image files that arguments name, and short names for them."""

import collections
import glob
import itertools
import os
import pathlib
import sys

from keras_vit.data.files import IMAGE_SUFFIXES, image_files
from keras_vit.messages import redact_url, similar_path
from keras_vit.preprocessing.web_images import is_url


def shown_names(paths):
    """Return what results call images: paths as they are; URLs without secrets, and with numbers if equal.

    >>> shown_names(["1.png", "https://host/image?id=1", "https://host/image?id=2"])
    ['1.png', 'https://host/image?…', 'https://host/image?…#2']
    """
    counts, names = collections.Counter(), {}
    for url in dict.fromkeys(filter(is_url, paths)):
        name = redact_url(url)
        counts[name] += 1
        names[url] = f"{name}#{counts[name]}" if counts[name] > 1 else name
    return [names.get(path, path) for path in paths]


def names_of(names):
    """Return the shortest ends of `shown_names` that are unique, so that reports and masks name no folders.

    >>> names_of(["a/1.png", "a/2.png"]), names_of(["a/1.png", "b/1.png"])
    (['1.png', '2.png'], ['a/1.png', 'b/1.png'])
    """
    paths = [pathlib.PurePath(os.path.abspath(name)) for name in names]
    for count in itertools.count(1):
        names = ["/".join(path.parts[-count:]) for path in paths]
        if len({*names}) == len({*paths}):
            return names


def png_files(paths):
    """Return the relative PNG file for a picture of each image: the image's name below what differs.

    Raises:
        ValueError: if two images have one name.

    >>> png_files(["a/1.jpg", "b/1.png"])
    {'a/1.jpg': 'a/1.png', 'b/1.png': 'b/1.png'}
    """
    shown = shown_names(paths)
    names = names_of([*map(_without_suffix, shown)])
    files = {path: f"{name.lstrip('/')}.png" for path, name in zip(shown, names)}
    images_of_file = collections.defaultdict(list)
    for path, file in files.items():
        images_of_file[file].append(path)
    for file, images in images_of_file.items():
        if len({*map(os.path.abspath, images)}) > 1:
            raise ValueError(f"expected one image for each file {file!r}; got {', '.join(images)}")
    return {path: files[name] for path, name in zip(paths, shown)}


def _without_suffix(name):
    """The name of an image without its suffix, but with its number.

    >>> _without_suffix("a/1.jpg"), _without_suffix("https://host/1.jpg?…#2")
    ('a/1', 'https://host/1#2')
    """
    stem, suffix = os.path.splitext(name)
    return "".join((stem, *suffix.partition("#")[1:]))


def images_of(argument, urls=False):
    """Return the image files of an argument: a file, a folder of images, a pattern, `-`, or a URL.

    `-` is a list of the others on standard input, one per line.

    Args:
        argument: As on the command line. A pattern is one of `glob`, such as `photos/*.jpg` or `photos/**`.
        urls: Whether URLs are accepted.

    Raises:
        ValueError: if a file does not exist, or there are no images in a folder or the list.
    """
    if argument != "-":
        return _images_at(argument, urls)
    lines = os.fsdecode(sys.stdin.buffer.read()).split("\n")
    paths = [path for line in lines if line.strip() for path in _images_at(line.rstrip("\r"), urls)]
    if not paths:
        raise ValueError("expected one path per line on standard input; got no images")
    return paths


def _images_at(argument, urls):
    if urls and is_url(argument):
        return [argument]
    path = pathlib.Path(argument)
    if path.is_file():
        return [argument]
    if not path.is_dir():
        # A name may have the characters of a pattern.
        if glob.has_magic(argument):
            return _images_of_pattern(argument)
        raise ValueError(f"no such image file: {argument}{similar_path(argument)}")
    images = image_files(path)
    if not images:
        raise ValueError(f"no images in the folder {argument!r}; expected {', '.join(IMAGE_SUFFIXES)}")
    return images


def matching(argument):
    """The paths that match a pattern, sorted; the argument itself if it exists or is no pattern.

    Raises:
        ValueError: if nothing matches.

    >>> matching("photo.jpg")
    ['photo.jpg']
    """
    if os.path.exists(argument) or not glob.has_magic(argument):
        return [argument]
    if not (paths := sorted(glob.glob(argument, recursive=True))):
        raise ValueError(f"no file matches {argument!r}")
    return paths


def _images_of_pattern(pattern):
    """The images among the files of a pattern, and in its folders, each once."""
    images = []
    for path in matching(pattern):
        if os.path.isdir(path):
            images += image_files(pathlib.Path(path))
        elif path.lower().endswith(IMAGE_SUFFIXES):
            images.append(path)
    if not images:
        raise ValueError(f"no images match {pattern!r}; expected {', '.join(IMAGE_SUFFIXES)}")
    return [*dict.fromkeys(images)]
