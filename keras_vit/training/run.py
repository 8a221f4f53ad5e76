"""One training run in a folder: build or load, train, evaluate, keep. TensorFlow only from here on."""

import dataclasses
import shutil
import sys

import keras
import tensorflow as tf

import keras_vit
from keras_vit.data.augmentation import Augmentation
from keras_vit.data.batches import evaluation_batches, training_batches
from keras_vit.data.datasets import load_dataset
from keras_vit.data.fingerprint import fingerprint
from keras_vit.evaluation.classification import evaluate
from keras_vit.training.building import build_model, finished_model, subset, transformer_of
from keras_vit.training.callbacks import EvaluateAverage, Keeper, Progress
from keras_vit.training.checkpoints import Checkpoints, check_finite, step_of
from keras_vit.training.compiling import compile_model
from keras_vit.training.masked_patches import masked_batches
from keras_vit.training.recipes import Recipe
from keras_vit.training.strategy import (
    distribute,
    is_chief,
    make_strategy,
    scope,
    smallest,
    told_of_lost_workers,
)
from keras_vit.training.tasks import TASKS
from keras_vit.training.workdir import Workdir, save_model

OBJECTIVES = ("classify", "masked_patch")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """What a run is a run of.

    Args:
        dataset: As `load_dataset` takes it.
        recipe: The numbers.
        model: A variant such as "B/16", or constructor arguments of `VisionTransformer`. With
            `weights` it may be None; if it is given, the checkpoint must have its sizes.
        weights: What to start from: a checkpoint's source, or a `.keras` file or run of this package;
            its `pre_logits` is dropped and the head starts anew, as in official fine-tuning. None for
            random weights.
        image_size: (height, width); None: the recipe's, the checkpoint's, or the model's own.
        on_bad_image: "fail" or "skip".
        objective: "classify" (or whatever the recipe's task is), or "masked_patch", which needs no
            labels: the finished model then has no head.
        target: Of "masked_patch": see `MaskedPatchPredictor`.
        sha256: Digest that the file of `weights` must have, in hexadecimal; None: any.
    """

    dataset: str
    recipe: Recipe
    model: str | dict | None = None
    weights: str | None = None
    image_size: tuple[int, int] | None = None
    on_bad_image: str = "fail"
    objective: str = "classify"
    target: str = "mean_color"
    sha256: str | None = None

    def __post_init__(self):
        if self.model is None and self.weights is None:
            raise ValueError("give a model, to train from random weights, or weights to start from")
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective {self.objective!r} is unknown; choose one of {OBJECTIVES}")

    @property
    def task(self):
        """The row of `TASKS` that tells loss and metrics."""
        if self.objective == "classify":
            return self.recipe.task
        return "pixels" if self.target == "pixels" else "colors"

    def as_json(self):
        """The configuration as JSON values, without the recipe's words."""
        return {**dataclasses.asdict(self), "recipe": self.recipe.numbers()}


def train(
    config,
    path,
    verbose="auto",
    *,
    strategy="auto",
    data_dir=None,
    deterministic=False,
    dataset=None,
    note=None,
):
    """Train a model as `config` says, in the folder `path`.

    Started again, a run that was cut off goes on from its last checkpoint as if nothing had happened, and
    a finished one returns what it had found. A run that was cut off is refused if its data have changed: the
    classes, the splits, or the names, labels and sizes of files.

    Args:
        config: RunConfig.
        path: The run's folder (see `Workdir`). Several workers need one that they all see.
        verbose: 1 for a progress bar, 2 for lines of progress, at most about 40 from the first step on,
            0 for nothing; "auto": the bar on a terminal, lines elsewhere.
        strategy: As for `make_strategy`.
        data_dir: As for `load_dataset`.
        deterministic: Whether GPUs have to compute the same bits each time, which is slower.
        dataset: The `Dataset` that `config.dataset` names, where it has been loaded already.
        note: A line to print when the training starts.

    Returns:
        (Workdir, record): the folder, which now holds `metrics.csv` and `model.keras`, and a dict of
        `test_accuracy` (or what the task is judged by, with `test_` in front), `test_samples`,
        `train_seconds`, `steps`, `best_step`, `data` (the data set's summary) and the versions used.

    Raises:
        ValueError: before the first step if the folder holds something else, the data have changed, the data
            or the model cannot be had, or the batch cannot be shared among the devices; later if the loss, a
            score or a weight is not finite. The last checkpoint is then of a step before, and there is no
            finished model.
        OSError: if there is too little space for the checkpoints; ConnectionError where another worker
            has stopped.

    Example:
        >>> recipe = RECIPES["digits"].with_changes(total_steps=2, batch_size=8)
        >>> workdir, record = train(RunConfig("digits", recipe, model="mu/8", image_size=16), "run", 0)
        >>> record["steps"], workdir.model.name
        (2, 'model.keras')
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"training needs KERAS_BACKEND=tensorflow; got {keras.backend.backend()!r}")
    recipe = config.recipe
    workdir = Workdir(path, config.as_json())
    if workdir.result:
        return workdir, workdir.result
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    devices = make_strategy(strategy)
    chief = is_chief(devices)
    if verbose == "auto":
        verbose = 1 if sys.stdout.isatty() else 2
    verbose = verbose if chief else 0
    _check_shares(recipe, devices.num_replicas_in_sync)
    augmentation = Augmentation(**{f.name: getattr(recipe, f.name) for f in dataclasses.fields(Augmentation)})
    dataset = dataset or load_data(config, data_dir)
    data = fingerprint(dataset)
    keras.utils.set_random_seed(recipe.seed)
    with scope(devices):
        model = build_model(config, dataset)
        compile_model(model, recipe, task=config.task)
        model.total_steps = None  # Each call of `fit` is a part of the run.
        model.optimizer.build(model.trainable_variables)
    judged = TASKS[config.task]
    checkpoints = Checkpoints(workdir.checkpoints, f"val_{judged.best}", judged.largest)
    if chief:
        workdir.make()
        _check_space(checkpoints, model)
        workdir.record_data(data)
    with told_of_lost_workers(devices):
        smallest(devices, 0)  # The first worker has recorded the data that the others compare with theirs.
        workdir.check_data(data)
        if verbose:
            print(dataset.summary(), flush=True)
        if verbose and note:
            print(note, flush=True)
        if verbose and not augmentation.is_exact:
            print("some augmentation layers draw numbers of their own: a resumed run sees other images")
        _fit(config, model, dataset, augmentation, workdir, checkpoints, devices, verbose)

    # `fit` has ended with the averaged weights in the model, where there are any.
    finished = finished_model(model)
    check_finite({weight.path: weight.numpy() for weight in finished.weights}, recipe.total_steps)
    scores = _test(config, finished, dataset)
    check_finite(scores, recipe.total_steps)
    record = {
        **scores,
        "train_seconds": sum(row["seconds"] for row in workdir.metrics()),
        "steps": recipe.total_steps,
        "best_step": checkpoints.best_step(),
        "parameters": finished.count_params(),
        "replicas": devices.num_replicas_in_sync,
        "data": dataset.summary(),
        "bad_images": list(dataset.bad_images),
        "versions": {
            "keras_vit": keras_vit.__version__,
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
        },
    }
    if chief:
        save_model(finished, workdir.model)
        workdir.write_result(record)
    return workdir, record


def load_data(config, data_dir=None):
    """The `Dataset` of a run."""
    recipe = config.recipe
    return load_dataset(config.dataset, recipe.seed, config.on_bad_image, task=recipe.task, data_dir=data_dir)


def _fit(config, model, dataset, augmentation, workdir, checkpoints, devices, verbose):
    """Train from the last checkpoint to the end, with a checkpoint every so many steps.

    Each of them ends what Keras calls an epoch; the last may be shorter than the others.
    """
    recipe = config.recipe
    every, total, batch_size = recipe.checkpoint_steps, recipe.total_steps, recipe.batch_size
    preprocessing = transformer_of(model).preprocessing
    train = dataset.split("train")
    if recipe.train_samples is not None:
        train = subset(train, recipe.train_samples, recipe.seed)

    def make_batches(first_step):
        def of_worker(worker, workers):
            batches = training_batches(
                train,
                preprocessing,
                batch_size,
                seed=recipe.seed,
                steps=total,
                first_step=first_step,
                augmentation=augmentation,
                num_classes=len(dataset.class_names) if augmentation.mixes else None,
                worker=worker,
                workers=workers,
            )
            return masked_batches(config, model, batches, recipe.seed, first_step, worker, workers)

        return distribute(devices, of_worker, batch_size)

    def validation_of_worker(worker, workers):
        batches = evaluation_batches(
            dataset.split("validation"), preprocessing, batch_size, worker=worker, workers=workers
        )
        # The same patches are masked each time, and others than in training.
        return masked_batches(config, model, batches, recipe.seed + 1, 0, worker, workers)

    ends = range(every, total + every, every)  # the steps of the checkpoints, the last one being `total`
    evaluated = [n for n, end in enumerate(ends, 1) if end % recipe.eval_every == 0 or end >= total]
    whole, rest = divmod(total, every)
    stretches = [(whole, every)] * bool(whole) + [(whole + 1, rest)] * bool(rest)
    resumed_from = None
    for last_epoch, steps in stretches:
        # Where a `fit` has ended there are averaged weights in the model: the checkpoint has the others.
        smallest(devices, 0)  # all have come here, so the first worker has written it
        done = smallest(devices, checkpoints.newest(print if verbose else _ignore) or 0)
        if resumed_from is None and done and verbose:
            print(f"continuing {workdir.path} from step {done} of {total}")
        resumed_from = done
        epoch = done // every
        if epoch >= last_epoch or done >= total:
            continue
        if done:
            checkpoints.restore(model, done)
        callbacks = [Progress(total, done, batch_size, verbose == 1)] if verbose else []
        if is_chief(devices):
            callbacks.append(Keeper(workdir, checkpoints, done, batch_size, total))
        if recipe.ema is not None:
            callbacks.append(EvaluateAverage())
        model.fit(
            make_batches(done),
            initial_epoch=epoch,
            epochs=last_epoch,
            steps_per_epoch=steps,
            validation_data=distribute(devices, validation_of_worker, batch_size),
            validation_freq=evaluated,
            callbacks=callbacks,
            shuffle=False,
            verbose=0,
        )
    if step_of(model) < total:  # the run had been cut off after its last step
        checkpoints.restore(model, total)
        model.optimizer.finalize_variable_values(model.trainable_weights)


def _ignore(text):
    pass


def _test(config, model, dataset):
    """What the finished model gets on the test split, each number with `test_` in front."""
    if config.objective == "masked_patch":
        return {}
    found = evaluate(model, dataset.split("test"), config.recipe.batch_size, config.recipe.task)
    return {f"test_{name}": value for name, value in found.items()}


def _check_shares(recipe, replicas):
    if recipe.batch_size % replicas:
        raise ValueError(f"batch_size {recipe.batch_size} cannot be shared by {replicas} devices evenly")
    if recipe.accumulation_steps > recipe.batch_size // replicas:
        raise ValueError(
            f"{recipe.batch_size // replicas} images a device cannot be split into "
            f"{recipe.accumulation_steps} micro-batches"
        )


def _check_space(checkpoints, model):
    """The checkpoints that are kept, the one being written and the finished model must fit."""
    wanted = 5 * checkpoints.bytes_of(model)
    free = shutil.disk_usage(checkpoints.path).free
    if free < wanted:
        raise OSError(
            f"{checkpoints.path} has {free / 1e9:.1f} GB free; the checkpoints of this run take "
            f"{wanted / 1e9:.1f} GB"
        )
