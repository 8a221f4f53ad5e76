"""The table of all model types of transformers."""

import re

from keras_vit import tasks
from keras_vit.weights.layouts.huggingface_types import MODEL_TYPES

TYPES = {kind.name: kind for kind in (*MODEL_TYPES, *tasks.huggingface_types())}
# The image towers of models with two: they are in `vision_config`, and their keys begin with "vision_model.".
TOWERS = {name: f"{name}_vision_model" for name in ("siglip", "siglip2", "clip", "owlvit", "owlv2")}
_GATE = re.compile(r".*\.mlp\.(gate_proj|weights_in)\.weight")


def type_of_keys(keys):
    """The first `ModelType` whose arrays have such keys, and whether the MLPs have a gate."""
    families = [kind for kind in TYPES.values() if kind.mark is not None]
    families.sort(
        key=lambda kind: kind.head is None
    )  # The keys of an encoder are in a model with a head, too.
    kinds = (kind for kind in families if any(re.fullmatch(kind.mark, key) for key in keys))
    return next(kinds, TYPES["vit"]), any(map(_GATE.fullmatch, keys))


def written_type(config):
    """The first `ModelType` that expresses a model with this `get_config()`, or nearly does."""
    head = next((kind.head for kind in TYPES.values() if kind.head in config), None)
    kinds = [kind for kind in TYPES.values() if kind.head == head]
    return min(kinds, key=lambda kind: [*map(len, kind.unsupported(config))])
