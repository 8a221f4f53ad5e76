"""The table of the tasks, each of which has a folder here; a member is imported when it is asked for.

A new task has its name and its members below, and only those that differ from the defaults. This module
imports nothing itself, so that each package may ask it, and no package imports a task.
"""

import functools

# The tasks with labels, the default first, and the objectives without labels.
NAMES = ("single_label", "multi_label", "regression", "segmentation", "detection", "depth", "keypoints")
SCENES = ("segmentation", "detection", "depth", "keypoints")  # of the data set `digits_scenes`
OBJECTIVES = ("masked_patch", "mae", "igpt", "dino", "distill")


@functools.cache
def label_kinds():
    """The `LabelKind` of each task with labels, by its name."""
    from keras_vit.tasks.classes.labels import KINDS
    from keras_vit.tasks.depth import labels as depth
    from keras_vit.tasks.detection import labels as detection
    from keras_vit.tasks.keypoints import labels as keypoints
    from keras_vit.tasks.segmentation import labels as segmentation

    kinds = (*KINDS, segmentation.KIND, detection.KIND, depth.KIND, keypoints.KIND)
    return {kind.name: kind for kind in kinds}


@functools.cache
def label_tasks():
    """The `LabelTask` of each task with labels, by its name."""
    from keras_vit.tasks.classes import multi_label, regression, single_label
    from keras_vit.tasks.depth import task as depth
    from keras_vit.tasks.detection import task as detection
    from keras_vit.tasks.keypoints import task as keypoints
    from keras_vit.tasks.segmentation import task as segmentation

    modules = (single_label, multi_label, regression, segmentation, detection, depth, keypoints)
    return {module.TASK.name: module.TASK for module in modules}


def pairs():
    """The task of images with texts."""
    from keras_vit.tasks.image_text.task import Pairs

    return Pairs()


@functools.cache
def objectives():
    """By the name of an objective without labels, a function from a `RunConfig` to its task."""
    from keras_vit.tasks.distillation.task import without_labels
    from keras_vit.tasks.pretraining.dino_task import DinoTask
    from keras_vit.tasks.pretraining.image_gpt_task import PixelTask
    from keras_vit.tasks.pretraining.masked_autoencoder_task import ReconstructionTask
    from keras_vit.tasks.pretraining.masked_patch_task import MaskedPatchTask

    tasks = (MaskedPatchTask, ReconstructionTask, PixelTask, DinoTask)
    return {**{task.name: task for task in tasks}, "distill": without_labels}


@functools.cache
def wrapped_tasks():
    """The tasks that train the model of a recipe's task in another way, of which a run has at most one."""
    from keras_vit.tasks.distillation.task import FeatureDistillation, LogitDistillation
    from keras_vit.tasks.flexible_patches import FlexiblePatchesTask

    return LogitDistillation, FeatureDistillation, FlexiblePatchesTask


@functools.cache
def folder_loaders():
    """By task, the loader of its folders, where they have other files than classes or a table."""
    from keras_vit.tasks.depth.folder import load_depth_folder
    from keras_vit.tasks.detection.folder import load_box_folder
    from keras_vit.tasks.image_text.folder import load_caption_folder
    from keras_vit.tasks.keypoints.folder import load_keypoint_folder
    from keras_vit.tasks.segmentation.folder import load_mask_folder

    return {
        "segmentation": load_mask_folder,
        "detection": load_box_folder,
        "depth": load_depth_folder,
        "keypoints": load_keypoint_folder,
        "image_text": load_caption_folder,
    }


@functools.cache
def folder_hints():
    """By task, a function from a folder and its files to advice; None for a folder of other labels."""
    from keras_vit.tasks.detection import folder as detection
    from keras_vit.tasks.keypoints import folder as keypoints

    return {"keypoints": keypoints.hint, "detection": detection.hint}


@functools.cache
def label_storages():
    """By task with labels, their `LabelStorage` in Parquet and tar files and TensorFlow Datasets."""
    from keras_vit.tasks.classes import storage as classes
    from keras_vit.tasks.depth import storage as depth
    from keras_vit.tasks.detection import storage as detection
    from keras_vit.tasks.keypoints import storage as keypoints
    from keras_vit.tasks.segmentation import storage as segmentation

    modules = (classes, segmentation, detection, depth, keypoints)
    return {storage.kind.name: storage for module in modules for storage in module.STORAGES}


def caption_storage():
    """The `LabelStorage` of captions."""
    from keras_vit.tasks.image_text.storage import CAPTIONS

    return CAPTIONS


def layouts():
    """By name, the class of the `Layout` of files that only models of one task have."""
    return {"scenic": "keras_vit.tasks.detection.scenic.Scenic"}


def huggingface_types():
    """The `ModelType`s of transformers that tasks have."""
    from keras_vit.tasks.depth import huggingface as depth
    from keras_vit.tasks.keypoints import huggingface as keypoints

    return (*depth.MODEL_TYPES, *keypoints.MODEL_TYPES)


def huggingface_additions():
    """What tasks add to the layout of transformers."""
    from keras_vit.tasks.depth import huggingface as depth
    from keras_vit.tasks.detection import huggingface as detection
    from keras_vit.tasks.image_text import huggingface as image_text
    from keras_vit.tasks.keypoints import huggingface as keypoints
    from keras_vit.tasks.pretraining import huggingface as pretraining
    from keras_vit.tasks.segmentation import huggingface as segmentation

    modules = (segmentation, detection, image_text, pretraining, depth, keypoints)
    return tuple(module.ADDITIONS for module in modules)


def timm_additions():
    """What tasks add to the layout of timm."""
    from keras_vit.tasks.depth import timm as depth
    from keras_vit.tasks.keypoints import timm as keypoints

    return depth.ADDITIONS, keypoints.ADDITIONS


def two_towers():
    """The module that reads and builds models of images and texts."""
    from keras_vit.tasks.image_text import checkpoints

    return checkpoints


def decoders():
    """The module that reads the decoders of masked autoencoders."""
    from keras_vit.tasks.pretraining import checkpoints

    return checkpoints


@functools.cache
def headed_models():
    """The classes of models with a head on an encoder's tokens, by their kinds."""
    from keras_vit.tasks.depth.model import DepthEstimator
    from keras_vit.tasks.detection.model import ObjectDetector
    from keras_vit.tasks.keypoints.model import KeypointEstimator
    from keras_vit.tasks.segmentation.model import ImageSegmenter

    classes = (ImageSegmenter, ObjectDetector, DepthEstimator, KeypointEstimator)
    return {cls.kind: cls for cls in classes}


@functools.cache
def stored_parts():
    """The `StoredParts` of the classes of models around a Vision Transformer."""
    from keras_vit.tasks.depth.checkpoints import DepthEstimatorParts
    from keras_vit.tasks.depth.model import DepthEstimator
    from keras_vit.tasks.detection.checkpoints import DetectorParts
    from keras_vit.tasks.detection.model import ObjectDetector
    from keras_vit.tasks.image_text.checkpoints import TwoTowerParts
    from keras_vit.tasks.image_text.model import ImageTextModel
    from keras_vit.tasks.keypoints.checkpoints import KeypointEstimatorParts
    from keras_vit.tasks.keypoints.model import KeypointEstimator
    from keras_vit.tasks.pretraining.checkpoints import DecoderParts
    from keras_vit.tasks.pretraining.masked_autoencoder import MaskedAutoencoder
    from keras_vit.tasks.segmentation.checkpoints import SegmenterParts
    from keras_vit.tasks.segmentation.model import ImageSegmenter

    return {
        ImageTextModel: TwoTowerParts,
        MaskedAutoencoder: DecoderParts,
        ImageSegmenter: SegmenterParts,
        ObjectDetector: DetectorParts,
        DepthEstimator: DepthEstimatorParts,
        KeypointEstimator: KeypointEstimatorParts,
    }


@functools.cache
def export_outputs():
    """By task, the class of its exports' outputs, where they are not rows of numbers."""
    from keras_vit.tasks.depth.outputs import DepthOutputs
    from keras_vit.tasks.detection.outputs import DetectionOutputs
    from keras_vit.tasks.keypoints.outputs import KeypointOutputs
    from keras_vit.tasks.segmentation.outputs import ClassMapOutputs

    classes = (ClassMapOutputs, DetectionOutputs, DepthOutputs, KeypointOutputs)
    return {outputs.task: outputs for outputs in classes}


@functools.cache
def report_pictures():
    """By task, the class of the pictures of an evaluation, where they are not thumbnails alone."""
    from keras_vit.tasks.classes.report import ClassPictures
    from keras_vit.tasks.depth.report import DepthPictures
    from keras_vit.tasks.detection.report import DetectionPictures
    from keras_vit.tasks.keypoints.report import KeypointPictures
    from keras_vit.tasks.segmentation.report import ClassMapPictures

    classes = (ClassPictures, ClassMapPictures, DetectionPictures, DepthPictures, KeypointPictures)
    return {pictures.task_name: pictures for pictures in classes}


@functools.cache
def label_pictures():
    """By task, a function from an image and its label to a picture of both."""
    from keras_vit.tasks.depth import pictures as depth
    from keras_vit.tasks.detection import pictures as detection
    from keras_vit.tasks.keypoints import pictures as keypoints
    from keras_vit.tasks.segmentation import pictures as segmentation

    return {
        "segmentation": segmentation.class_overlay,
        "detection": detection.labeled,
        "depth": depth.labeled,
        "keypoints": keypoints.labeled,
    }


@functools.cache
def label_colors():
    """By task, a function from labels and the names of classes to the colors of those in their pictures."""
    from keras_vit.tasks.detection import pictures as detection
    from keras_vit.tasks.segmentation import pictures as segmentation

    return {"segmentation": segmentation.colors_of, "detection": detection.colors_of}


@functools.cache
def prediction_folders():
    """The folders of pictures or maps that `predict` writes; importing them needs neither Keras nor NumPy."""
    from keras_vit.tasks.depth.files import DepthMaps
    from keras_vit.tasks.detection.files import Boxes
    from keras_vit.tasks.keypoints.files import Skeletons
    from keras_vit.tasks.segmentation.files import ClassMaps

    return Boxes(), ClassMaps(), DepthMaps(), Skeletons()


def instances():
    """The task of the objects of a segmenter."""
    from keras_vit.tasks.segmentation.instance_task import INSTANCES

    return INSTANCES


def coco_parts(task):
    """The function from what models of a task find in images to the parts of a COCO JSON file."""
    from keras_vit.tasks.detection import coco_output as detection
    from keras_vit.tasks.keypoints import coco_output as keypoints

    return keypoints.coco_parts if task == "keypoints" else detection.coco_parts


def stored_teachers():
    """The module of teachers whose outputs were computed before."""
    from keras_vit.tasks.distillation import stored_outputs

    return stored_outputs


def get_task(name):
    """The task of a name, or a `LabelTask` itself; ValueError where there is none.

    >>> get_task("regression").primary_metric
    'mae'
    """
    from keras_vit import rules

    if not isinstance(name, str):
        return name
    return label_tasks()[rules.one_of(NAMES).check("task", name)]


def task_of_model(model, name=None, default="single_label"):
    """The task of a model: a named one or a `LabelTask`, the model's own one, or a default.

    Args:
        model, default: As for `labels_of`.
        name: The name of a task, or a `LabelTask`, which is returned; None for the model's own.

    Raises:
        ValueError: as `labels_of`.

    Example:
        >>> segmenter = keras_vit.ImageSegmenter(keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3), 5)
        >>> task_of_model(segmenter).name, task_of_model(model, "regression").name
        ('segmentation', 'regression')
    """
    from keras_vit.labels import labels_of

    if name is None or isinstance(name, str):
        return get_task(labels_of(model, name, default).name)
    return name


def task_with_labels(recipe):
    """The task of a recipe's labels, or of the pairs that it compares."""
    return get_task(recipe.task) if recipe.image_text is None else pairs()


@functools.cache
def fields_of_tasks():
    """The fields of recipes and runs that some tasks use and others do not."""
    without_labels = [task for name, task in objectives().items() if name != "distill"]
    tasks = (*label_tasks().values(), pairs(), *without_labels, *wrapped_tasks())
    return {name for task in tasks for name in task.recipe_fields}
