"""Train a model in a folder, so that an interrupted run can be resumed. Needs TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras

from keras_vit.data.batches import evaluation_batches, training_batches
from keras_vit.data.chunked_records import refuse_sorted
from keras_vit.data.damage import damage_named
from keras_vit.data.datasets import load_dataset
from keras_vit.data.fingerprint import fingerprint
from keras_vit.engine.device_dtype import AUTO, SUPPORTED, device_dtype
from keras_vit.engine.preemption import LeaveAfterFirstWorker, note_sigterm, stop
from keras_vit.engine.strategy import STRATEGIES, make_deterministic, make_devices
from keras_vit.messages import names_arguments, spelled
from keras_vit.tasks.task import Source
from keras_vit.training.building import build_model, finished_model, subset, whole_model
from keras_vit.training.callbacks import (
    CheckpointCallback,
    EvaluateAverage,
    JoinCheckpoints,
    Phases,
    Progress,
    Validate,
)
from keras_vit.training.checkpoints import Checkpoints, check_finite, step_of
from keras_vit.training.compiling import compile_by
from keras_vit.training.frozen_features import FeatureSamples, feature_samples
from keras_vit.training.log_callbacks import LogCallbacks, find_callback
from keras_vit.training.patience import StopEarly
from keras_vit.training.probing import check_has_one_head, start_from_probe
from keras_vit.training.workdir import Workdir, save_model, stored_recipe
from keras_vit.types import Path

if TYPE_CHECKING:
    from keras_vit.data.datasets import Dataset
    from keras_vit.training.run_config import RunConfig

_PROBED = 64  # the largest number of images whose features for the probe are computed at once


@names_arguments
def train(
    config: RunConfig,
    path: Path,
    verbose: int | str = "auto",
    *,
    strategy: str = "auto",
    data_dir: Path | None = None,
    deterministic: bool = False,
    dataset: Dataset | Callable[[], Dataset] | None = None,
    note: str | None = None,
    log: Sequence[str | keras.callbacks.Callback] = (),
) -> tuple[Workdir, dict[str, Any]]:
    """Train a model as `config` says, in the folder `path`.

    An interrupted run that is started again resumes from its last checkpoint and ends as if it had not been
    interrupted; a finished one returns its result. A run is not resumed if its data have changed: the
    classes, the splits, the names, labels and sizes of files, or the tokenizer. The dtype "auto" is chosen
    when a run begins, and kept on other devices.

    Args:
        config: RunConfig.
        path: The run's folder (see `Workdir`), which all workers must be able to access.
        verbose: 1 for a progress bar, 2 for lines of progress, about 40 at most, 0 for no output; "auto": the
            bar on a terminal, lines otherwise.
        strategy: As for `make_strategy`.
        data_dir: As for `load_dataset`.
        deterministic: Whether GPUs must compute the same bits each time, which is slower. JAX only follows it
            if it has not yet computed anything in this process.
        dataset: The `Dataset` that `config.dataset` names, if it is already loaded, or a function that loads
            it, which is not called for a finished run.
        note: A line to print when the training starts.
        log: Keras callbacks for logs of experiments, or their names, such as "keras.callbacks.CSVLogger",
            with arguments in the form "NAME:filename=log.csv,append=True". An epoch of theirs is the part
            between two checkpoints. The first of several workers calls them. A finished run and one that is
            continued may have others.

    Returns:
        (Workdir, record): the folder, which now contains `metrics.csv` and `model.keras`, and a dict of
        `test_accuracy` (or the scores of the task or of `retrieval`, each with the prefix `test_`),
        `test_samples`, `train_seconds`, `steps`, fewer than the recipe's after an early end, `best_step`,
        `data` (the data set's summary, and of `train_samples` how many are used) and the versions used.

    Raises:
        ValueError: before the first step if the folder contains anything else, another process trains in it,
            the data have changed, the data or the model cannot be loaded, a callback cannot be made, or the
            batch cannot be divided among the devices; later if an image cannot be read any more, or the loss,
            a score or a weight is not finite. Checkpoints of earlier steps then
            remain, and no finished model is written.
        OSError: if a file cannot be written; ConnectionError if another worker stopped; SystemExit with
            status 143 on SIGTERM and KeyboardInterrupt on Ctrl-C, after a checkpoint at the next step.

    Example:
        >>> recipe = RECIPES["digits"].with_changes(total_steps=2, batch_size=8)
        >>> config = keras_vit.training.RunConfig("digits", recipe, model="mu/8", image_size=16)
        >>> workdir, record = train(config, "run", 0)
        >>> record["steps"], workdir.model.name
        (2, 'model.keras')
    """
    if keras.backend.backend() not in STRATEGIES:
        raise ValueError(
            f"training needs KERAS_BACKEND={' or '.join(STRATEGIES)}; got {keras.backend.backend()!r}"
        )
    is_auto = config.recipe.dtype == AUTO
    config = config.with_dtype(stored_recipe(path).get("dtype", AUTO))
    workdir = Workdir(path, config.as_json())
    missing = _missing_model(workdir, config.task)
    if workdir.result and missing is None:
        return workdir, workdir.result
    if deterministic:
        make_deterministic()
    makers = [*map(find_callback, log)]
    devices = make_devices(strategy)
    if config.recipe.dtype == AUTO:
        config = config.with_dtype(_common_dtype(devices))
        workdir = Workdir(path, config.as_json())
    recipe, task = config.recipe, config.task
    checkpoints = Checkpoints(workdir.checkpoints, f"val_{task.validation_metric}", task.higher_is_better)
    if verbose == "auto":
        verbose = 1 if sys.stdout.isatty() else 2
    verbose = verbose if devices.is_chief else 0
    report = functools.partial(print, flush=True) if verbose else lambda line: None
    if workdir.result:
        report(f"{str(missing)!r} is missing and is rebuilt from the last checkpoint")
    devices.check_batch_size(recipe.batch_size)
    phases = Phases()
    dataset = dataset() if callable(dataset) else dataset or load_data(config, data_dir)
    phases.end("data")
    samples = dataset.split("train")
    if recipe.train_samples is not None:
        samples = subset(samples, recipe.train_samples, recipe.seed)
    if dataset.parts:
        samples.shares(recipe.batch_size)  # It refuses a batch that is too small.
    model = _compiled_model(config, dataset, samples, devices)
    phases.end("model")
    splits = dataset.splits.values()
    data = fingerprint(dataset, model.text_preprocessing) | task.identity()
    # Invalid input has been refused by now, so that it creates no folder.
    with workdir.locked() if devices.is_chief else contextlib.nullcontext():
        if devices.is_chief:
            workdir.make()
            workdir.record_data(data)
        with note_sigterm() as sigterm, devices.raise_on_lost_worker(sigterm), damage_named(splits):
            devices.smallest(0)  # The first worker has recorded the data that the others compare with.
            workdir.check_data(data)
            random = "some augmentation layers have random state: a resumed run sees other images"
            computing = _computing(model, recipe, is_auto)
            for line in filter(
                None, (computing, _summary(dataset, recipe), note, None if recipe.is_exact else random)
            ):
                report(line)
            phases.end("checking the data")
            progress = functools.partial(Progress, bar=verbose == 1, phases=phases) if verbose else None
            made = (make(workdir.path.name, workdir.config) for make in makers * devices.is_chief)
            outside = (progress, LogCallbacks([*made]), report, sigterm)
            with devices.training_scope():
                steps = _fit(config, model, dataset, samples, workdir, checkpoints, devices, *outside)
        if devices.is_stopping(sigterm):
            stop("all steps are done")
        record = _finish(config, model, dataset, workdir, checkpoints, devices, steps)
    return workdir, record


def _common_dtype(devices):
    """The dtype in which the devices of all workers can compute."""
    with devices.scope():
        return SUPPORTED[devices.smallest(SUPPORTED.index(device_dtype()))]


def _computing(model, recipe, is_auto):
    """The line that tells the dtype of a run, and whether XLA compiles it where that is a choice."""
    is_chosen = model.jit_compile and keras.backend.backend() == "tensorflow"  # JAX always compiles.
    words = " (dtype=auto)" * is_auto + ", compiled by XLA" * is_chosen
    return f"computing in {recipe.dtype}{words}"


def _summary(dataset, recipe):
    """The line that tells the data of a run."""
    if recipe.train_samples is None:
        return dataset.summary()
    return f"{dataset.summary()}; {recipe.train_samples} of the training samples used"


def _missing_model(workdir, task):
    """The file that a finished run lacks, or None."""
    if not workdir.model.is_file():
        return workdir.model
    # Without a checkpoint, the whole model of a finished run could only be trained again.
    is_whole = not task.keeps_whole or workdir.pretrainer.is_file()
    return None if is_whole or not any(workdir.checkpoints.glob("step-*")) else workdir.pretrainer


def _compiled_model(config, dataset, samples, devices):
    """The compiled model of a run, with the variables of its optimizer."""
    recipe, task = config.recipe, config.task
    keras.utils.set_random_seed(recipe.seed)
    with devices.scope():
        model = build_model(config, dataset)
        task.prepare(model, samples, recipe)
        if recipe.probe_first:
            check_has_one_head(model.trained())
        devices.check_model(model)
        # A run weights samples only to fill batches up, with weight 0.
        compile_by(model, recipe, task, weighted_metrics=True)
        model.is_segment = True  # Each call of `fit` is only a segment of the run.
        model.optimizer.build(model.trainable_variables)
    return model


def _finish(config, model, dataset, workdir, checkpoints, devices, steps):
    """Evaluate a model that was trained for a number of steps, and write it; the run's record."""
    recipe, task = config.recipe, config.task
    # If there are averaged weights, `fit` has left them in the model.
    finished = finished_model(model)
    pretrainer = whole_model(model) if task.keeps_whole else None
    weights = (pretrainer or finished).weights
    check_finite({weight.path: weight.numpy() for weight in weights}, steps)
    with damage_named(dataset.splits.values()):
        scores = task.test(model, finished, dataset, _on_one_device(recipe, devices))
    scores = {f"test_{name}": score for name, score in scores.items()}
    check_finite(scores, steps)
    record = {
        **scores,
        "train_seconds": sum(row["seconds"] for row in workdir.metrics()),
        "steps": steps,
        "best_step": checkpoints.best_step(),
        "parameters": finished.count_params(),
        "replicas": devices.num_replicas_in_sync,
        "compiled_by_xla": model.jit_compile,
        "data": _summary(dataset, recipe),
        "bad_images": list(dataset.bad_images),
        "versions": _versions(),
    }
    if devices.is_chief:
        if pretrainer is not None:
            save_model(pretrainer, workdir.pretrainer)
        save_model(finished, workdir.model)
        workdir.write_result(record)
    return record


def _versions():
    """The versions of the packages that a run's numbers depend on."""
    names = dict.fromkeys(("keras_vit", "keras", "tensorflow", keras.backend.backend()))
    return {name: sys.modules[name].__version__ for name in names}


def load_data(config, data_dir=None):
    """The `Dataset` of a run."""
    recipe, task = config.recipe, config.recipe.task
    needed = {"texts": config.task.reads_texts, "labels": config.task.needs_labels}
    needed |= {"fields": config.fields, "classes": config.classes}
    dataset = load_dataset(
        config.dataset, recipe.held_out_seed, config.on_bad_image, task=task, data_dir=data_dir, **needed
    )
    refuse_sorted(dataset)
    return dataset


def _fit(config, model, dataset, samples, workdir, checkpoints, devices, progress, log, report, sigterm):
    """Train from the last checkpoint to the end, with a checkpoint every `checkpoint_steps`.

    Returns:
        The number of steps, which is smaller than the recipe's if its `patience` has ended the run.
    """
    recipe = config.recipe
    every, total, batch_size = recipe.checkpoint_steps, recipe.total_steps, recipe.batch_size
    ends = range(every, total + every, every)  # the steps of the checkpoints, the last one being `total`
    evaluated = [n for n, end in enumerate(ends, 1) if end % recipe.eval_every == 0 or end >= total]
    done = devices.smallest(checkpoints.newest(report) or 0)
    stopping = functools.partial(devices.is_stopping, sigterm)
    scores, of_one = config.task.validate, _on_one_device(recipe, devices)
    validate = scores and Validate(lambda encoder: scores(encoder, dataset, of_one), evaluated, devices)
    splits = [samples] if validate else [samples, dataset.split("validation")]
    if done:
        report(f"resuming {workdir.path} from step {done} of {total}")
    else:
        _start(config, model, samples, devices, report)
    if done < total and devices.is_one_device:
        features = feature_samples(model, of_one, *splits)
        if features is not None:
            report("the frozen layers compute each image once")
            splits = features
    early = _early_end(recipe, workdir, checkpoints, done, devices)
    while done < total and not (early and early.is_due):
        epoch, epochs, steps = next_segment(done, every, total)
        devices.smallest(0)  # All workers have arrived here, so the first one has written the checkpoint.
        if done:  # A finished `fit` leaves averaged weights in the model, not the trained ones.
            checkpoints.restore(model, done)
        callbacks = [] if validate is None else [validate]
        if progress:
            callbacks.append(progress(total, done, batch_size))
        callbacks.append(
            _checkpoints_callback(workdir, checkpoints, done, recipe, stopping, devices, sigterm)
        )
        if recipe.ema is not None:
            callbacks.append(EvaluateAverage())
        callbacks += [log, early] if early else [log]
        held_out = None if validate else _batches(config, model, dataset, splits[1], devices)
        model.fit(
            _batches(config, model, dataset, splits[0], devices, first_step=done),
            initial_epoch=epoch,
            epochs=epochs,
            steps_per_epoch=steps,
            validation_data=held_out,
            validation_freq=evaluated,
            callbacks=callbacks,
            shuffle=False,
            verbose=0,
        )
        done = step_of(model)
    log.close()
    _keep_best(config, model, checkpoints, done, report)
    return done


def _on_one_device(recipe, devices):
    """The recipe with the batch size of one device."""
    return dataclasses.replace(recipe, batch_size=recipe.images_at_once(devices.num_replicas_in_sync))


def _start(config, model, samples, devices, report):
    """What a run does before its first step."""
    if line := config.task.note(model):
        report(line)
    if config.recipe.probe_first:
        report("the head starts as the linear probe of the frozen features")
        # Rounding depends on the size of a batch, which is the same for any number of devices here.
        size = min(config.recipe.batch_size, _PROBED)
        start_from_probe(model, samples, dataclasses.replace(config.recipe, batch_size=size), devices)


def _early_end(recipe, workdir, checkpoints, done, devices):
    """The callback that ends a run by the recipe's `patience`; None without one."""
    if not recipe.patience:
        return None
    rows = [row for row in workdir.metrics() if row["step"] <= done]
    return StopEarly(checkpoints, rows, recipe.patience, devices)


def _keep_best(config, model, checkpoints, done, report):
    """Give the model its weights of the last step, or of the best one if the run has ended early."""
    recipe, kept = config.recipe, done
    if done < recipe.total_steps:
        kept = checkpoints.best_step()
        metric = spelled(config.task.validation_metric)
        report(
            f"stopped at step {done} of {recipe.total_steps}: {recipe.patience} validations without a better "
            f"{metric}"
        )
        report(f"the model is that of step {kept}")
    if step_of(model) != kept:  # The run has ended early, or was interrupted after its last step.
        checkpoints.restore(model, kept)
        model.optimizer.finalize_variable_values(model.trainable_weights)


def _checkpoints_callback(workdir, checkpoints, done, recipe, stopping, devices, sigterm):
    """The callback by which the first worker writes checkpoints and the others follow it."""
    if devices.is_chief:
        total, batch_size = recipe.total_steps, recipe.batch_size
        return CheckpointCallback(workdir, checkpoints, done, batch_size, total, stopping)
    if keras.backend.backend() == "jax":
        return JoinCheckpoints(checkpoints, stopping)
    return LeaveAfterFirstWorker(sigterm)


def next_segment(done, every, total):
    """The next call of `fit`, whose epochs each end with a checkpoint.

    Epochs have `every` steps. The rest of an epoch that was interrupted, after a checkpoint on SIGTERM, and a
    last epoch with fewer steps are a call each.

    Args:
        done: The number of steps that are done.
        every: Steps between checkpoints.
        total: Steps of the run.

    Returns:
        (initial_epoch, epochs, steps_per_epoch).

    >>> next_segment(0, 4, 14), next_segment(5, 4, 14), next_segment(12, 4, 14)
    ((0, 3, 4), (1, 2, 3), (3, 4, 2))
    """
    epoch, begun = divmod(done, every)
    if begun or total - done < every:
        return epoch, epoch + 1, min(every - begun, total - done)
    return epoch, total // every, every


def _batches(config, model, dataset, samples, devices, first_step=None):
    """The training batches of a split from a step on, or its evaluation batches, for all devices."""
    recipe, preprocessing = config.recipe, config.task.preprocessing(model)
    trains = first_step is not None
    if not trains:  # As many images as in a micro-batch, whose memory is known to suffice.
        parts = devices.equal_parts
        recipe = dataclasses.replace(recipe, batch_size=-(-recipe.images_at_once() // parts) * parts)
    augment = config.task.augment

    def of_worker(worker, workers):
        part = {"worker": worker, "workers": workers}
        if isinstance(samples, FeatureSamples):
            batches = samples.batches(recipe.batch_size, recipe.seed, recipe.total_steps, first_step)
        elif trains:
            batches = training_batches(
                samples,
                preprocessing,
                recipe.batch_size,
                seed=recipe.seed,
                steps=recipe.total_steps,
                first_step=first_step,
                augmentation=recipe,
                augment=augment and augment(recipe, model, preprocessing, samples.exif),
                num_classes=len(dataset.class_names) if recipe.mixes else None,
                **part,
            )
        else:
            batches = evaluation_batches(samples, preprocessing, recipe.batch_size, **part)
        # Each validation masks the same patches, or has the same texts, by another seed than training does.
        seeds = {"seed": recipe.seed + (not trains), "first_step": first_step or 0}
        source = Source(dataset, "train" if trains else "validation", samples, recipe)
        return config.task.batches(batches, model, source, **seeds, **part)

    steps = recipe.accumulation_steps if trains else None
    return devices.distribute(of_worker, recipe.batch_size, steps, model.jit_compile)
