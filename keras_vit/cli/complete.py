"""`keras-vit complete`: images that a model of pixels continues below their first rows, or new ones."""

import pathlib

from PIL import Image

from keras_vit.cli.predict import images_of, mask_files
from keras_vit.models import ImageGPT
from keras_vit.weights import from_pretrained
from keras_vit.writing import atomic_path, check_writable


def run(args):
    check_writable(args.output)
    if bool(args.images) == (args.count is not None):
        raise ValueError("expected either images to complete, or --count for new ones")
    if args.images and args.rows is None:
        raise ValueError("expected --rows, the rows of the images that are kept")
    files = mask_files([path for argument in args.images for path in images_of(argument)])
    model = from_pretrained(args.model, pretrainer=True, trust=args.trust, sha256=args.sha256)
    if not isinstance(model, ImageGPT):
        kind = type(model).__name__
        raise ValueError(f"expected a model that pretrain --objective igpt trained; got a {kind}")
    options = {"temperature": args.temperature, "top_k": args.top_k, "seed": args.seed}
    if args.images:
        names, images = files.values(), model.complete([*files], args.rows, **options)
    else:
        names, images = (f"{i}.png" for i in range(args.count)), model.sample(args.count, **options)
    with atomic_path(args.output, overwrite=False) as folder:
        for name, image in zip(names, images):
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    print(f"{len(images)} images are in {args.output}")
