"""The authors' files of ViTPose and ViTPose+, whose encoder has timm's names; they are only read.

Sources: `mmpose/models/backbones/vit.py` and `vit_moe.py`, `heads/topdown_heatmap_simple_head.py` and the
configurations of ViTAE-Transformer/ViTPose.
"""

from keras_vit.tasks.keypoints.huggingface import PADDING, SIZE, VitPoseForm, head_rows, with_expert
from keras_vit.tasks.keypoints.model import HEADS
from keras_vit.weights.catalogue import NORMS
from keras_vit.weights.layouts.additions import TimmAdditions
from keras_vit.weights.layouts.table import torch_rows

_THEIRS, _PREFIX = "keypoint_head.", "backbone."
_LAYERS = f"{_THEIRS}deconv_layers."
_TABLE, _KERNEL = f"{_PREFIX}pos_embed", f"{_PREFIX}patch_embed.proj.weight"
_SMALL, _HEADS_OF_SMALL = 384, 12  # hidden size of ViTPose-S, of which others have six heads


def _renamed(arrays):
    """The arrays of a model without class token and experts, and the options that no array shows."""
    if f"{_THEIRS}final_layer.weight" not in arrays:
        return arrays, {}
    arrays = with_expert(arrays, 0)
    arrays.pop(f"{_PREFIX}cls_token", None)  # of MAE, without a use
    options = {"patch_padding": PADDING, "position_interpolation": "bicubic"}
    table, kernel = arrays.get(_TABLE), arrays.get(_KERNEL)
    if table is not None and table.ndim == 3:
        # All patches have the position of the class token, too.
        arrays[_TABLE] = table[:, 1:] + table[:, :1]
        if kernel is not None and kernel.ndim == 4:
            grid = tuple(side // patch for side, patch in zip(SIZE, kernel.shape[2:]))
            if grid[0] * grid[1] == arrays[_TABLE].shape[1]:
                options["position_grid"] = grid
        if table.shape[2] == _SMALL:
            options["num_heads"] = _HEADS_OF_SMALL
    return arrays, options


class _AuthorsForm(VitPoseForm):
    """How the authors store a ViTPose with a head: "classic" or "simple"."""

    def head_options(self, checkpoint, layout, folder):
        mean, std = NORMS["imagenet"]
        checkpoint.arguments.setdefault("preprocessing", {"mean": mean, "std": std})
        return super().head_options(checkpoint, layout, None)


ADDITIONS = TimmAdditions(
    {f"{head}_vitpose": _AuthorsForm(head) for head in HEADS},
    rows=(
        *torch_rows({"encoder_norm": "last_norm"}),
        *head_rows(f"{_THEIRS}final_layer", [(f"{_LAYERS}{i}", f"{_LAYERS}{i + 1}") for i in (0, 3)]),
    ),
    prefixes=(_PREFIX,),
    without_prefix=r"keypoint_head\..*",
    others=r"associate_keypoint_heads\..*|keypoint_head\.deconv_layers\.\d+\.num_batches_tracked"
    r"|backbone\.blocks\.\d+\.mlp\.experts\.[1-9]\d*\..*",
    renamed=_renamed,
)
