"""`keras-vit complete`: images that a model of pixels continues below their first rows, or new ones."""

from PIL import Image

from keras_vit.cli.predict import images_of, mask_files
from keras_vit.models import ImageGPT
from keras_vit.models.configured import check_class
from keras_vit.weights import from_pretrained
from keras_vit.writing import atomic_path


def run(args):
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
    files = mask_files([path for argument in args.images for path in images_of(argument, urls=True)])
    model = from_pretrained(args.model, kind="pretrainer", trust=args.trust, sha256=args.sha256)
    check_class(model, ImageGPT, "a model that pretrain --objective igpt trained")
    options = {"temperature": args.temperature, "top_k": args.top_k, "seed": args.seed}
    if args.images:
        return files.values(), model.complete([*files], args.rows, **options)
    return [f"{i}.png" for i in range(args.count)], model.sample(args.count, **options)
