"""Changes to a folder of images, as happen between two starts of a run."""

import csv
import os
import shutil

from PIL import Image

CLASSES = ("ant", "bee", "cat")
OLD = 10**18  # nanoseconds; the files were written one second after another


def write_layout(root, layout, rng, suffix=".png"):
    """A data set of three classes in one of `LAYOUTS`, BMP files being all of one size."""
    root.mkdir()
    rows = []
    for number in range(36):
        name, part = CLASSES[number % 3], ("train", "train", "val", "test")[number // 3 % 4]
        folder = {"classes": name, "splits": f"{part}/{name}"}.get(layout, "images")
        file = f"{folder}/{number:02d}{suffix}"
        write_image(root / file, rng, OLD + number * 10**9)
        labels = [name] if layout == "table" else [int(name == other) for other in CLASSES]
        rows.append([file, *labels, part])
    if layout in TABLES:
        names = ["label"] if layout == "table" else list(CLASSES)
        write_rows(root, [["file", *names, "split"], *rows])
    return root


def write_image(path, rng, time):
    path.parent.mkdir(parents=True, exist_ok=True)
    colors = rng.integers(2, 60)  # which changes the size of a PNG
    Image.fromarray(rng.integers(0, colors, (9, 9, 3), "uint8")).save(path)
    os.utime(path, ns=(time, time))


def read_rows(root):
    with open(root / "labels.csv", newline="") as file:
        return [*csv.reader(file)]


def write_rows(root, rows):
    with open(root / "labels.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)


def images(root):
    return sorted(path for path in root.rglob("*.*") if path.suffix in (".png", ".bmp"))


def folders(root, name="*"):
    """The folders of the classes, or of one."""
    return sorted({path.parent for path in images(root) if path.parent.match(name)})


def draw(rng, values, count=1):
    """Some of the values, and the only one if `count` is 1."""
    drawn = [values[i] for i in rng.choice(len(values), count, replace=False)]
    return drawn if count > 1 else drawn[0]


def exchange(one, other):
    aside = one.with_name(".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def rename_a_class(root, rng):
    for folder in folders(root, "bee"):
        folder.rename(folder.with_name("wasp"))


def exchange_two_classes(root, rng):
    for folder in folders(root, "ant"):
        exchange(folder, folder.with_name("cat"))


def delete_a_class(root, rng):
    for folder in folders(root, "bee"):
        shutil.rmtree(folder)


def add_a_class(root, rng):
    for number, folder in enumerate({folder.parent for folder in folders(root)}):
        for image in range(3):
            write_image(folder / "dog" / f"{number}{image}.png", rng, OLD)


def replace_a_class(root, rng):
    """Other images of the same names; those of one size cannot be told from copies."""
    for path in draw(rng, folders(root)).iterdir():
        write_image(path, rng, OLD * 2)


def add_an_image(root, rng):
    write_image(draw(rng, folders(root)) / "new.png", rng, OLD)


def rename_an_image(root, rng):
    path = draw(rng, images(root))
    path.rename(path.with_stem("renamed"))


def exchange_two_images(root, rng):
    exchange(*draw(rng, images(root), 2))


def move_an_image(root, rng):
    """Into the folder of another class, or of another split."""
    path = draw(rng, images(root))
    path.rename(draw(rng, [folder for folder in folders(root) if folder != path.parent]) / path.name)


def cut_an_image(root, rng):
    """One that can be read, but is of another size."""
    path = draw(rng, images(root))
    Image.fromarray(rng.integers(0, 255, (17, 17, 3), "uint8")).save(path)


def exchange_two_splits(root, rng):
    exchange(root / draw(rng, ["train", "val"]), root / "test")


def relabel(root, rng):
    header, *rows = read_rows(root)
    row = draw(rng, rows)
    place = header.index("label") if "label" in header else int(rng.integers(1, 4))
    others = [name for name in CLASSES if name != row[place]] if "label" in header else [1 - int(row[place])]
    row[place] = draw(rng, others)
    write_rows(root, [header, *rows])


def rename_a_label(root, rng):
    rows = [["wasp" if value == "bee" else value for value in row] for row in read_rows(root)]
    if rows[0][1] != "label":
        rows[0][2] = "wasp"
    write_rows(root, rows)


def change_a_split(root, rng):
    header, *rows = read_rows(root)
    row = draw(rng, rows)
    row[-1] = draw(rng, [part for part in ("train", "val", "test") if part != row[-1]])
    write_rows(root, [header, *rows])


def drop_the_splits(root, rng):
    write_rows(root, [row[:-1] for row in read_rows(root)])


def leave_it(root, rng):
    pass


def copy_it(root, rng):
    """Without the times."""
    shutil.copytree(root, root.with_name("copy"), copy_function=shutil.copyfile)
    shutil.rmtree(root)
    root.with_name("copy").rename(root)


def add_other_files(root, rng):
    (root / "notes.txt").write_text("taken in May")
    (root / ".hidden.png").write_text("")
    (root / "empty").mkdir()


def respell_the_table(root, rng):
    rows = [[f" {value} " for value in row[:-1]] + [f"{row[-1]}".upper()] for row in read_rows(root)[1:]]
    write_rows(root, [["filename", *read_rows(root)[0][1:]], *rows])


FOLDERS, TABLES = ("classes", "splits"), ("table", "multi_label")
CHANGES = {  # with the layouts that a change is made in
    **dict.fromkeys((rename_a_class, exchange_two_classes, delete_a_class, add_a_class), FOLDERS),
    **dict.fromkeys((replace_a_class, add_an_image, rename_an_image, move_an_image), FOLDERS),
    exchange_two_splits: ("splits",),
    **dict.fromkeys((relabel, rename_a_label, change_a_split, drop_the_splits, respell_the_table), TABLES),
    **dict.fromkeys((exchange_two_images, cut_an_image), FOLDERS + TABLES),
    **dict.fromkeys((leave_it, copy_it, add_other_files), FOLDERS + TABLES),
}
