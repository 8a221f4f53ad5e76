"""The tasks that only runs have, a file for each: pairs of images and texts, and tasks without labels."""

from keras_vit.tasks import TASKS, get_task
from keras_vit.training.tasks.dino import DinoTask
from keras_vit.training.tasks.distillation import FeatureDistillation, LogitDistillation, without_labels
from keras_vit.training.tasks.flexible_patches import FlexiblePatchesTask
from keras_vit.training.tasks.igpt import PixelTask
from keras_vit.training.tasks.image_text_pairs import Pairs as Pairs
from keras_vit.training.tasks.mae import ReconstructionTask
from keras_vit.training.tasks.masked_patch import MaskedPatchTask
from keras_vit.training.tasks.pretraining import Pictures as Pictures
from keras_vit.training.tasks.wrapped_task import WrappedTask as WrappedTask

# The tasks without labels, by the names of `keras-vit pretrain --objective`.
PRETRAINING = {task.name: task for task in (MaskedPatchTask, ReconstructionTask, PixelTask, DinoTask)}
# The tasks that train the model of a recipe's task in another way, of which a run has at most one.
WRAPPED = (LogitDistillation, FeatureDistillation, FlexiblePatchesTask)
# The fields of recipes and runs that some tasks use and others do not.
FIELDS_OF_TASKS = {
    name for task in (*TASKS.values(), Pairs, *PRETRAINING.values(), *WRAPPED) for name in task.recipe_fields
}
PRETRAINING["distill"] = without_labels


def task_with_labels(recipe):
    """The task of a recipe's labels, or of the pairs that it compares."""
    return get_task(recipe.task) if recipe.image_text is None else Pairs()
