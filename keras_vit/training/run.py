"""One training run in a folder: build or load, train, evaluate, keep. TensorFlow only from here on."""

import dataclasses
import sys
import time
import zipfile

import keras

import keras_vit
from keras_vit.data.batches import evaluation_batches, training_batches
from keras_vit.data.datasets import load_dataset
from keras_vit.evaluation.classification import evaluate
from keras_vit.models import VisionTransformer
from keras_vit.training.compiling import compile_model
from keras_vit.training.recipes import Recipe
from keras_vit.training.workdir import Workdir, save_model
from keras_vit.variants import parse_variant
from keras_vit.weights import from_pretrained


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """What a run is a run of.

    Args:
        dataset: As `load_dataset` takes it.
        recipe: The numbers.
        model: A variant such as "B/16", or constructor arguments of `VisionTransformer`. With
            `weights` it may be None; if it is given, the checkpoint must have its sizes.
        weights: Path of a checkpoint to start from; its `pre_logits` is dropped and the head starts
            at zero, as in official fine-tuning. None for random weights.
        image_size: (height, width); None: the checkpoint's, or the model's own.
        on_bad_image: "fail" or "skip".
    """

    dataset: str
    recipe: Recipe
    model: str | dict | None = None
    weights: str | None = None
    image_size: tuple[int, int] | None = None
    on_bad_image: str = "fail"

    def __post_init__(self):
        if self.model is None and self.weights is None:
            raise ValueError("give a model, to train from random weights, or weights to start from")


def train(config, path, verbose="auto"):
    """Train a model as `config` says, in the folder `path`.

    Started again, a run that was cut off goes on from its last checkpoint, and a finished one
    returns what it had found.

    Args:
        config: RunConfig.
        path: The run's folder (see `Workdir`).
        verbose: 1 for progress bars, 2 for a line an evaluation, 0 for nothing; "auto": bars on a
            terminal, lines elsewhere.

    Returns:
        (Workdir, record): the folder, which now holds `metrics.csv` and `model.keras`, and a dict of
        `test_accuracy`, `test_samples`, `train_seconds`, `steps` and the versions used.

    Raises:
        ValueError: if the folder holds something else, or the data or the model cannot be had.

    Example:
        >>> recipe = RECIPES["digits"].with_changes(total_steps=2, batch_size=8)
        >>> workdir, record = train(RunConfig("digits", recipe, model="mu/8", image_size=16), "run", 0)
        >>> record["steps"], workdir.model.name
        (2, 'model.keras')
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"training needs KERAS_BACKEND=tensorflow; got {keras.backend.backend()!r}")
    workdir = Workdir(path, dataclasses.asdict(config))
    if workdir.result:
        return workdir, workdir.result
    dataset = load_dataset(config.dataset, config.recipe.seed, config.on_bad_image)
    keras.utils.set_random_seed(config.recipe.seed)
    model = _model(config, dataset)
    compile_model(model, config.recipe)
    workdir.make()
    if workdir.checkpoint.exists():
        model = _checkpoint(workdir.checkpoint)
    if verbose == "auto":
        verbose = 1 if sys.stdout.isatty() else 2
    done = int(model.optimizer.iterations)
    if done and verbose:
        print(f"continuing {workdir.path} from step {done} of {config.recipe.total_steps}")
    _fit(model, dataset, config.recipe, workdir, done, verbose)

    test = evaluate(model, dataset.split("test"), config.recipe.batch_size)
    save_model(model, workdir.model)
    record = {
        "test_accuracy": test["accuracy"],
        "test_samples": test["samples"],
        "train_seconds": sum(row["seconds"] for row in workdir.metrics()),
        "steps": config.recipe.total_steps,
        "parameters": model.count_params(),
        "bad_images": list(dataset.bad_images),
        "versions": {"keras_vit": keras_vit.__version__, "keras": keras.__version__},
    }
    workdir.write_result(record)
    return workdir, record


def _checkpoint(path):
    try:
        return keras.saving.load_model(path)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{str(path)!r} is damaged ({str(error).splitlines()[0]}); remove it to train from the start"
        ) from None


def _model(config, dataset):
    sizes = parse_variant(config.model) if isinstance(config.model, str) else dict(config.model or {})
    options = {"num_classes": len(dataset.class_names), "class_names": dataset.class_names}
    if config.image_size:
        options["image_size"] = config.image_size
    if config.weights is None:
        return VisionTransformer(**{"image_size": 224, **sizes, **options})
    model = from_pretrained(config.weights, representation_size=None, head="reset", **options)
    for name, value in sizes.items():
        have = getattr(model, name)
        if have != value and have != (value, value):
            raise ValueError(f"{config.weights} has {name} {have}, but {config.model} has {value}")
    return model


def _fit(model, dataset, recipe, workdir, done, verbose):
    """Train from step `done` to the end, with an evaluation and a checkpoint every so many steps."""
    keeper = _Keeper(workdir, done)
    validation = evaluation_batches(dataset.split("validation"), model.preprocessing, recipe.batch_size)
    whole, rest = divmod(recipe.total_steps, recipe.eval_every)
    for last_epoch, steps in ((whole, recipe.eval_every), (whole + 1, rest)):
        epoch = done // recipe.eval_every
        if epoch >= last_epoch or not steps or done >= recipe.total_steps:
            continue
        batches = training_batches(
            dataset.split("train"),
            model.preprocessing,
            recipe.batch_size,
            seed=recipe.seed,
            steps=recipe.total_steps,
            first_step=done,
            crop_area=recipe.crop_area,
            shift=recipe.shift,
            flip=recipe.flip,
        )
        model.fit(
            batches,
            initial_epoch=epoch,
            epochs=last_epoch,
            steps_per_epoch=steps,
            validation_data=validation,
            callbacks=[keeper],
            shuffle=False,
            verbose=verbose,
        )
        done = int(model.optimizer.iterations)


class _Keeper(keras.callbacks.Callback):
    """After each evaluation writes the row of `metrics.csv`, then the checkpoint.

    A run that is killed between the two has a row too many, which is left out when it goes on.
    """

    def __init__(self, workdir, done):
        super().__init__()
        self.workdir = workdir
        self.rows = [row for row in workdir.metrics() if row["step"] <= done]
        self.started = time.perf_counter()

    def on_epoch_begin(self, epoch, logs=None):
        self.started = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        optimizer = self.model.optimizer
        row = {
            "step": int(optimizer.iterations),
            "seconds": time.perf_counter() - self.started,
            "learning_rate": float(optimizer.learning_rate),
        }
        self.rows.append(row | {name: float(value) for name, value in logs.items()})
        self.workdir.write_metrics(self.rows)
        save_model(self.model, self.workdir.checkpoint)
