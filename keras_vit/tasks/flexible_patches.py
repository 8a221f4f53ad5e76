"""Classification at patch sizes that are drawn for each batch (FlexiViT)."""

from keras_vit.models.vit.flexible_patches import INTERPOLATION, FlexiblePatches
from keras_vit.tasks.wrapped_task import WrappedTask

TASKS = ("single_label", "multi_label", "regression")


class FlexiblePatchesTask(WrappedTask):
    """A task of one vector of outputs for each image, at the patch sizes of the recipe's `patch_sizes`.

    The size of a batch is a function of the seed and the step. The validation, the test and the finished
    model are at the model's own `patch_size`.

    Raises:
        ValueError: for a recipe of another task.

    Source: Beyer et al. 2023 (FlexiViT, arXiv 2212.08013).
    """

    recipe_fields = ("patch_sizes",)

    def __init__(self, config):
        recipe = config.recipe
        if recipe.task not in TASKS or recipe.image_text is not None:
            task = recipe.task if recipe.image_text is None else "image_text"
            raise ValueError(f"patch_sizes are for the tasks {', '.join(TASKS)}; got {task!r}")
        super().__init__(config)

    @staticmethod
    def applies(config):
        return config.recipe.patch_sizes is not None

    def options(self, dataset):
        return {**super().options(dataset), "position_interpolation": INTERPOLATION}

    def around(self, model, config, dataset):
        return FlexiblePatches(super().around(model, config, dataset), config.recipe.patch_sizes)

    def batches(self, batches, model, source, **place):
        from keras_vit.data.augmentation.drawn_patches import drawn_patch_batches  # needs TensorFlow

        model_sizes = model.trained().patch_size[:1]
        sizes = source.recipe.patch_sizes if source.split == "train" else model_sizes
        batches = super().batches(batches, model, source, **place)
        return drawn_patch_batches(batches, sizes, seed=place["seed"], first_step=place["first_step"])
