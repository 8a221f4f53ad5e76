"""`keras-vit complete`: images that a model of pixels continues below their first rows, or new ones."""

import keras_vit
from keras_vit.cli import options
from keras_vit.writing import atomic_path


def add_arguments(add):
    options.device(add)
    options.model(add, exported=False)
    add("images", nargs="*", help=options.PATHS)
    add("--rows", type=int, help="rows of the model's input that are kept; the others are sampled")
    add("--count", type=options.positive_int, help="number of new images, in place of images to complete")
    add("--temperature", type=float, default="1", help="below 1 for more probable colors")
    add("--top_k", type=options.positive_int, help="sample among this many colors (default: all)")
    add("--seed", type=options.non_negative_int, default=0, help="determines what is sampled")
    add("--output", metavar="DIR", required=True, help="new folder for the images, as PNG files")


def run(args):
    from PIL import Image

    if bool(args.images) == (args.count is not None):
        raise ValueError("expected either images to complete, or --count for new ones")
    if bool(args.images) != (args.rows is not None):
        raise ValueError("expected --rows, the rows that are kept, with images and not with --count")
    with atomic_path(args.output, overwrite=False) as folder:
        names, images = _sampled(args)
        for name, image in zip(names, images):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    written = "1 image is" if len(images) == 1 else f"{len(images)} images are"
    print(f"{written} in {args.output}")


def _sampled(args):
    """Return the files' names and the images."""
    from keras_vit.cli.images import images_of, png_files
    from keras_vit.models.backbones import check_class

    files = png_files([path for argument in args.images for path in images_of(argument, urls=True)])
    model = keras_vit.from_pretrained(args.model, kind="pretrainer", trust=args.trust, sha256=args.sha256)
    check_class(model, keras_vit.ImageGPT, "a model that pretrain --objective igpt trained")
    sampling = {"temperature": args.temperature, "top_k": args.top_k, "seed": args.seed}
    if args.images:
        return files.values(), model.complete([*files], args.rows, **sampling)
    return [f"{i}.png" for i in range(args.count)], model.sample(args.count, **sampling)
