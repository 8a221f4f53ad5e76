"""`keras-vit data show|write|check`: what a data set has, copies in shards, and damaged images."""

from keras_vit import names, tasks
from keras_vit.cli import options
from keras_vit.cli.report import check_png, report, text_table
from keras_vit.labels.box_rows import MAX_BOXES
from keras_vit.messages import listed, printable
from keras_vit.writing import atomic_write

SHEET, SIDE = 48, 192  # images of a contact sheet, and their side in pixels
SIZES = ("width", "height", "bytes")
FEW = 0.5  # A smaller fraction of the changes of class in a random order is named.


def _add_arguments(add):
    options.dataset(add)
    options.task(add)
    add("--captions", action="store_true", help="captions in place of labels, for an image-text model")
    add("--seed", type=options.non_negative_int, default=0, help="of a split that the data set lacks")


def _add_show_arguments(add):
    _add_arguments(add)
    options.on_bad_image(add)
    add("--max_images", type=options.positive_int, help="images to read of each split (default: all)")
    add("--sheet", metavar="FILE.png", help=f"draw {SHEET} training images")
    options.json(add)


def _add_check_arguments(add):
    _add_arguments(add)
    options.json(add)


def _add_write_arguments(add):
    _add_arguments(add)
    options.on_bad_image(add)
    add("--output", required=True, metavar="DIR", help="new folder, or that of a command that was stopped")
    add("--format", default=names.SHARD_FORMATS[0], help=options.either(names.SHARD_FORMATS))
    add("--images_per_shard", type=options.positive_int, default=5000, help="in a file, at most")


ACTIONS = {
    "show": (_add_show_arguments, "classes, sizes, formats, images that are stored twice, a contact sheet"),
    "check": (_add_check_arguments, "decode every image and mask once, and name those that are damaged"),
    "write": (_add_write_arguments, "write tar or Parquet files of equal size, in a random order"),
}


def continues(args):
    return args.action == "write" and "the same command writes the files that are missing"


def run(args):
    return {"show": _show, "check": _check, "write": _write}[args.action](args)


def _open(args, on_bad_image):
    from keras_vit.data.datasets import load_dataset

    return load_dataset(
        args.dataset,
        args.seed,
        on_bad_image,
        task=args.task or tasks.NAMES[0],
        data_dir=args.data_dir,
        texts=args.captions,
        labels=not args.captions,
        fields=args.field,
        classes=args.classes,
    )


def _show(args):
    from keras_vit.data.statistics import describe

    check_png("--sheet", args.sheet)
    dataset = _open(args, args.on_bad_image)
    statistics = describe(dataset, args.max_images)
    tables = (_table(statistics), _objects_table(statistics))
    lines = [line for table in tables if table for line in (table, "")]
    text = "\n".join([printable(dataset.summary()), "", *lines, *_remarks(statistics)])
    report(args, statistics, text.rstrip())
    if args.sheet:
        _draw_sheet(args, dataset)


def _table(statistics):
    rows = []
    for split, of in statistics["splits"].items():
        sides = [f"{of[name][0]:,}–{of[name][2]:,}" if of["read"] else "" for name in SIZES]
        rows.append((split, of["images"], of["read"], listed([*of["formats"]]), *sides))
    return text_table(rows, ("split", "images", "read", "formats", *SIZES))


def _objects_table(statistics):
    """The objects of each class, and the images that have some; None without boxes."""
    splits = {split: of["objects"] for split, of in statistics["splits"].items() if "objects" in of}
    if not splits:
        return None
    rows = [
        (printable(name), *(number for objects in splits.values() for number in objects[name]))
        for name in statistics["class_names"]
    ]
    titles = [f"{split} {noun}" for split in splits for noun in ("objects", "images")]
    return text_table(rows, ("class", *titles))


def _remarks(statistics):
    """Yield lines about the classes, and about what may be wrong."""
    for split, of in statistics["splits"].items():
        counts = {name: count for name, count in of.get("by_class", {}).items() if count}
        if counts:
            ends = [printable(f"{counts[name]:,} ({name})") for name in _ends(counts)]
            yield f"{split}: {ends[0]} to {ends[1]} images per class"
            changes, expected = of["class_changes"]
            if of["order"] == "lanes" and changes < FEW * expected:
                order = f"{changes:,} follow one of another class, {expected:,.0f} in a random order"
                yield f"{split}: the images are sorted by class: {order}"
        if of.get("box_areas"):
            least, middle, largest = (f"{100 * area:.2g} %" for area in of["box_areas"])
            sizes = f"{least} to {largest} of its image, half of them at most {middle}"
            yield f"{split}: a box covers {sizes}"
        if of.get("crowds") or of.get("empty"):
            yield f"{split}: {of['crowds']:,} crowd(s), {of['empty']:,} image(s) without objects"
        images, most = of.get("many_objects", (0, 0))
        if images:
            drawn = f"a training step draws {MAX_BOXES} of them at random"
            yield f"{split}: {images:,} image(s) with more than {MAX_BOXES} objects, up to {most:,}: {drawn}"
    if statistics["damaged"]:
        places = printable(listed([f"{place} ({reason})" for place, reason in statistics["damaged"]]))
        yield f"{len(statistics['damaged'])} damaged: {places}"
    if statistics["doubled"]:
        first = printable(" = ".join(statistics["doubled"][0]))
        yield f"{len(statistics['doubled'])} images are stored more than once, the first: {first}"


def _ends(counts):
    return min(counts, key=counts.get), max(counts, key=counts.get)


def _draw_sheet(args, dataset):
    from keras_vit.data.batches import evaluation_sample
    from keras_vit.inspection.label_pictures import label_sheet
    from keras_vit.labels import label_kind
    from keras_vit.preprocessing import Preprocessing
    from keras_vit.reports.page import png_of
    from keras_vit.reports.training_images import label_words

    samples, captions = dataset.split("train"), dataset.captions("train")
    label_type, class_names = label_kind(dataset.task), dataset.class_names
    # A crop would cut off objects.
    resize = "pad" if label_type.moves else "crop"
    prepare = Preprocessing(SIDE, resize, 1.0, mean=(0.0,) * 3, std=(1.0,) * 3)
    images, texts, labels = [], [], []
    # The first batch of a training run.
    records = samples.training_records(args.seed, 0, 1, min(SHEET, len(samples)))
    for _, encoded, label in records:
        image, shown = evaluation_sample(label_type, prepare, samples.exif, encoded, label)
        texts.append(label_words(label.numpy(), label_type, class_names, captions))
        images.append(prepare.colors(image.numpy()))
        labels.append(shown.numpy())
    sheet = label_sheet(images, labels, texts, label_type, class_names, dataset.name)
    atomic_write(args.sheet, png_of(sheet))


def _check(args):
    """Return 1 if images are damaged, else 0."""
    from keras_vit.data.damage import damaged
    from keras_vit.data.datasets import folder_of

    dataset = _open(args, "skip")
    broken = [*map(list, dataset.bad_images.items())]
    # Those of a folder have been decoded to be skipped.
    for samples in () if folder_of(args.dataset) else dataset.splits.values():
        broken += map(list, damaged(samples))
    count = sum(map(len, dataset.splits.values())) + len(dataset.bad_images)
    lines = [printable(f"{place}: {reason}") for place, reason in broken]
    lines.append(f"{count:,} images checked, {len(broken):,} images or masks damaged")
    report(args, {"images": count, "damaged": broken}, "\n".join(lines))
    return 1 if broken else 0


def _write(args):
    from keras_vit.data.shard_writing import write_shards

    dataset = _open(args, args.on_bad_image)
    files = write_shards(dataset, args.output, args.format, args.images_per_shard, args.seed)
    print(f"{dataset.summary()}\n{len(files)} files in {args.output}: --dataset {args.format}:{args.output}")
