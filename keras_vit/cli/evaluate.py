"""`keras-vit evaluate`: the scores of a model on a split."""

import keras_vit
from keras_vit.cli import options
from keras_vit.cli.report import cell_text, check_png, report, text_table
from keras_vit.messages import redact_urls
from keras_vit.writing import atomic_write

# Options of `evaluate` that are for classes, which captions have not.
OF_CLASSES = ("task", "real", "per_class", "confusion", "labels", "prompts")


def add_arguments(add):
    options.device(add)
    options.model(add)
    options.patch_size(add)
    options.dataset(add)
    options.split(add)
    options.on_bad_image(add)
    options.task(add)
    add("--per_class", action="store_true", help="add a row for each class")
    add("--confusion", metavar="FILE.png", help="draw the confusion matrix")
    options.labels(add)
    recall = "image-text models: recall of a folder's captions and images"
    add("--retrieval", action="store_true", help=recall)
    add("--real", metavar="FILE.json", help="ReaL labels of ImageNet's validation images")
    options.json(add)


def run(args):
    from keras_vit.cli.labels import with_labels
    from keras_vit.cli.source import open_dataset, open_model, task_of
    from keras_vit.tasks import get_task

    evaluation = keras_vit.evaluation
    _check(args, args.task and get_task(args.task))
    if args.retrieval:
        return _retrieval(args)
    real = evaluation.read_real_labels(args.real) if args.real else None
    model = open_model(args.model, args.trust, args.sha256, "stored", args.patch_size)
    model = with_labels(model, args.labels, args.prompts)
    by_texts = args.labels and model.is_classifier
    task = get_task(args.task or ("single_label" if by_texts else task_of(args.model, model)))
    if args.task is None:
        _check(args, task)
    task.check_model(model)
    dataset = open_dataset(args, model, task.name)
    samples = dataset.split(args.split)
    real = evaluation.real_labels_of(samples, real) if real else None
    names = model.class_names or dataset.class_names or None
    predictions = evaluation.predict(model, samples, args.batch_size, task)
    scores = task.scores(predictions) | (evaluation.real_accuracy(predictions, real) if real else {})
    value, text = _result(args, dataset, scores)
    if args.per_class and (classes := task.per_class(predictions, names)):
        value["classes"] = classes
        rows = [[*map(cell_text, row.values())] for row in classes]
        text += f"\n\n{text_table(rows, [*classes[0]])}"
    if args.confusion:
        value["confusion"] = args.confusion
    try:
        report(args, value, text)
    finally:
        if args.confusion:
            matrix = task.confusion(predictions)
            rows = task.confusion_names(names or [str(i) for i in range(model.num_classes)])
            _draw(args.confusion, matrix, rows, redact_urls(f"{args.dataset}, {args.split}"))


def _retrieval(args):
    """Print the recall of images by captions, and of captions by images."""
    from keras_vit.cli.source import open_dataset, open_model
    from keras_vit.models.backbones import image_model

    model = open_model(args.model, args.trust, args.sha256, "image_text", args.patch_size)
    if image_model(model) is model or model.text_preprocessing is None:
        raise ValueError("--retrieval needs an image-text model with its tokenizer, such as SigLIP or CLIP")
    dataset = open_dataset(args, model.image, "single_label", texts=True)
    captions = dataset.captions(args.split)
    if captions is None:
        raise ValueError(f"--retrieval needs a folder of images and captions; got {args.dataset}")
    scores = keras_vit.evaluation.retrieval(model, dataset.split(args.split), captions, args.batch_size)
    report(args, *_result(args, dataset, scores))


def _result(args, dataset, scores):
    """Return the scores as they are reported, and as a table."""
    value = {"model": args.model, "dataset": args.dataset, "split": args.split, **scores}
    rows = [(name, cell_text(number)) for name, number in value.items()]
    rows += [("unreadable image", path) for path in dataset.bad_images]
    return {**value, "bad_images": list(dataset.bad_images)}, text_table(rows)


def _check(args, task):
    """Refuse impossible options before anything is computed."""
    if args.retrieval and (unused := [f"--{name}" for name in OF_CLASSES if getattr(args, name)]):
        raise ValueError(f"--retrieval scores captions, without classes; got it with {', '.join(unused)}")
    if task and not task.label.is_class_id and args.real:
        raise ValueError(f"--real needs one label per image; got --task {task.name}")
    if task and not task.confusion and args.confusion:
        raise ValueError(f"--confusion needs one label per image or pixel; got --task {task.name}")
    if task and not task.per_class and args.per_class:
        raise ValueError(f"--per_class needs classes; got --task {task.name}")
    check_png("--confusion", args.confusion)


def _draw(file, matrix, names, title):
    from keras_vit.inspection.figures import confusion_figure
    from keras_vit.reports.page import png_of

    atomic_write(file, png_of(confusion_figure(matrix, names, title)))
