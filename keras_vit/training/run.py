"""One training run in a folder: build or load, train, evaluate, keep. TensorFlow only from here on."""

import contextlib
import dataclasses
import itertools
import os
import shutil
import sys

import keras
import tensorflow as tf

import keras_vit
from keras_vit.data.batches import evaluation_batches, training_batches
from keras_vit.data.datasets import folder_of, load_dataset
from keras_vit.data.fingerprint import fingerprint
from keras_vit.data.folder import file_orientations
from keras_vit.evaluation import evaluate
from keras_vit.messages import listed
from keras_vit.tasks import get_task
from keras_vit.tasks.masked_patch import masked_patch_objective
from keras_vit.training.building import build_model, finished_model, subset, transformer_of
from keras_vit.training.callbacks import EvaluateAverage, Keeper, Progress
from keras_vit.training.checkpoints import Checkpoints, check_finite, step_of
from keras_vit.training.compiling import compile_model
from keras_vit.training.masked_patches import masked_batches
from keras_vit.training.preemption import LeaveAfterFirstWorker, sigterm_noted, stop
from keras_vit.training.recipes import Recipe
from keras_vit.training.strategy import (
    distribute,
    is_chief,
    make_strategy,
    scope,
    smallest,
    told_of_lost_workers,
)
from keras_vit.training.workdir import Workdir, save_model

OBJECTIVES = ("classify", "masked_patch")
# What TensorFlow raises for an image file that is damaged, missing or protected, or that Pillow cannot read.
UNREADABLE = (
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.UnknownError,
)


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
        """The `keras_vit.tasks.Task` of the labels, or the objective of masked patches."""
        if self.objective == "classify":
            return get_task(self.recipe.task)
        return masked_patch_objective(self.target)

    def as_json(self):
        """The configuration as JSON values, without the recipe's words."""
        return {**dataclasses.asdict(self), "recipe": self.recipe.hyperparameters()}


def _defaults(of):
    return {f.name: f.default for f in dataclasses.fields(of) if f.default is not dataclasses.MISSING}


# Fields that a configuration may lack, as an earlier version has stored it, by what runs did before.
BEFORE = {**_defaults(RunConfig), "recipe": _defaults(Recipe)}


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
        ValueError: before the first step if the folder holds something else, another process trains in it,
            the data have changed, the data or the model cannot be had, or the batch cannot be shared among
            the devices; later if an image cannot be read any more, or the loss, a score or a weight is not
            finite. The last checkpoint is then of a step before, and there is no finished model.
        OSError: if there is too little space for the checkpoints; ConnectionError where another worker
            has stopped; SystemExit with status 143 on SIGTERM, after a checkpoint at the next step.

    Example:
        >>> recipe = RECIPES["digits"].with_changes(total_steps=2, batch_size=8)
        >>> workdir, record = train(RunConfig("digits", recipe, model="mu/8", image_size=16), "run", 0)
        >>> record["steps"], workdir.model.name
        (2, 'model.keras')
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"training needs KERAS_BACKEND=tensorflow; got {keras.backend.backend()!r}")
    recipe = config.recipe
    workdir = Workdir(path, config.as_json(), BEFORE)
    if workdir.result and workdir.model.is_file():
        return workdir, workdir.result
    task = config.task
    checkpoints = Checkpoints(workdir.checkpoints, f"val_{task.validation_metric}", task.higher_is_better)
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    devices = make_strategy(strategy)
    chief = is_chief(devices)
    if verbose == "auto":
        verbose = 1 if sys.stdout.isatty() else 2
    verbose = verbose if chief else 0
    report = print if verbose else _ignore
    if workdir.result:
        _check_checkpoints(checkpoints, workdir, report)
    _check_shares(recipe, devices.num_replicas_in_sync)
    with contextlib.ExitStack() as locks:
        if chief and workdir.path.exists():
            locks.enter_context(workdir.locked())
        dataset = dataset or load_data(config, data_dir)
        data = fingerprint(dataset)
        keras.utils.set_random_seed(recipe.seed)
        with scope(devices):
            model = build_model(config, dataset)
            compile_model(model, recipe, task=task)
            model.total_steps = None  # Each call of `fit` is a part of the run.
            model.optimizer.build(model.trainable_variables)
        if chief:
            locks.enter_context(workdir.locked())  # There is a folder only from here on if the run is new.
            workdir.make()
            _check_space(checkpoints, model)
            workdir.record_data(data)
        with (
            sigterm_noted() as sigterm,
            told_of_lost_workers(devices, sigterm),
            _images_named(dataset),
        ):
            smallest(devices, 0)  # The first worker has recorded the data that the others compare with.
            workdir.check_data(data)
            if verbose:
                print(dataset.summary(), flush=True)
            if verbose and note:
                print(note, flush=True)
            if verbose and not recipe.is_exact:
                print("some augmentation layers draw numbers of their own: a resumed run sees other images")
            _fit(config, model, dataset, workdir, checkpoints, devices, verbose, sigterm)
        if sigterm:
            stop("all steps are done")

        # `fit` has ended with the averaged weights in the model, where there are any.
        finished = finished_model(model)
        check_finite({weight.path: weight.numpy() for weight in finished.weights}, recipe.total_steps)
        with _images_named(dataset):
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


def _check_checkpoints(checkpoints, workdir, report):
    """Report that a finished run's model is made anew; ValueError if there is no checkpoint for it."""
    if checkpoints.newest(_ignore) is None:
        raise ValueError(
            f"{os.fspath(workdir.model)!r} is gone, and there is no checkpoint to make it anew from; remove "
            "result.json to train again"
        )
    report(f"{os.fspath(workdir.model)!r} is gone and is made anew from the last checkpoint")


@contextlib.contextmanager
def _images_named(dataset):
    """Within, name the images that could be read when the data set was loaded, and now cannot.

    Raises:
        ValueError: where TensorFlow raises an error, and there are such images.
    """
    try:
        yield
    except UNREADABLE as error:
        images = [samples.images for samples in dataset.splits.values()] if folder_of(dataset.name) else []
        paths = [*itertools.chain(*images)]
        broken = [path for path, found in zip(paths, file_orientations(paths)) if not found]
        if not broken:
            raise
        raise ValueError(
            f"{len(broken)} image(s) cannot be read any more: {listed(broken)}; restore them, and the same "
            "command continues the run"
        ) from error


def load_data(config, data_dir=None):
    """The `Dataset` of a run."""
    recipe = config.recipe
    return load_dataset(config.dataset, recipe.seed, config.on_bad_image, task=recipe.task, data_dir=data_dir)


def _fit(config, model, dataset, workdir, checkpoints, devices, verbose, sigterm):
    """Train from the last checkpoint to the end, with a checkpoint every so many steps.

    Each of them ends what Keras calls an epoch. The last may be shorter than the others, and so is one that
    continues from a checkpoint that was written on SIGTERM.
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
                augmentation=recipe,
                num_classes=len(dataset.class_names) if recipe.mixes else None,
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
    report = print if verbose else _ignore
    done = smallest(devices, checkpoints.newest(report) or 0)
    if done:
        report(f"continuing {workdir.path} from step {done} of {total}")
        expected = {*range(every, done, every), done}
        if lost := expected - {row["step"] for row in workdir.metrics()}:
            report(f"{workdir.path / 'metrics.csv'} lacks the rows of steps {listed(sorted(lost))}")
    while done < total:
        epoch, begun = divmod(done, every)
        if begun or total - done < every:
            last_epoch, steps = epoch + 1, min(every - begun, total - done)
        else:
            last_epoch, steps = total // every, every
        smallest(devices, 0)  # All have come here, so the first worker has written the checkpoint.
        if done:  # Where a `fit` has ended there are averaged weights in the model; these are the others.
            checkpoints.restore(model, done)
        callbacks = [Progress(total, done, batch_size, verbose == 1)] if verbose else []
        if is_chief(devices):
            callbacks.append(Keeper(workdir, checkpoints, done, batch_size, total, sigterm))
        else:
            callbacks.append(LeaveAfterFirstWorker(sigterm))
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
        done = step_of(model)
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
