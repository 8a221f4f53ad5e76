"""The batches of a run whose objective is masked patch prediction."""

from keras_vit.data.masking import masked_patch_batches


def masked_batches(config, model, batches, seed, first_step, worker, workers):
    """The batches as the run's model takes them: as they are, or with patches masked and their targets."""
    if config.objective != "masked_patch":
        return batches
    return masked_patch_batches(
        batches, model.patch_targets, seed=seed, first_step=first_step, worker=worker, workers=workers
    )
