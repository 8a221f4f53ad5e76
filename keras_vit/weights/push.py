"""Upload a model to Hugging Face: weights, configuration and model card."""

from __future__ import annotations

import json
import pathlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from keras_vit.messages import names_arguments, one_line
from keras_vit.models.backbones import image_model
from keras_vit.rules import one_of, optional
from keras_vit.weights.huggingface_card import model_card
from keras_vit.weights.kinds import parts_of
from keras_vit.weights.layouts import LAYOUTS, hub_config
from keras_vit.weights.save import save_weights

if TYPE_CHECKING:
    import keras

PUSHED = ("huggingface", "timm")  # in order of preference
LOG_IN = "log in ('hf auth login', or HF_TOKEN) with an account that may write it"


@names_arguments
def push_to_hub(
    model: keras.Model,
    repository: str,
    *,
    layout: str | None = None,
    private: bool | None = None,
    license: str | None = None,
    dataset: str | None = None,
    metrics: Mapping[str, float] | None = None,
    tags: Sequence[str] = (),
    message: str = "Upload a Vision Transformer",
) -> str:
    """Upload a model to Hugging Face, for transformers or timm and for `from_pretrained`.

    One commit adds `model.safetensors`, the configuration that transformers or timm reads, and a model card.
    A missing repository is created; existing files are replaced, and stay in its history. The token is
    huggingface_hub's: from `hf auth login`, or HF_TOKEN.

    Args:
        model: VisionTransformer; or, for transformers only, an `ImageSegmenter` with head "mask", a
            `DepthEstimator` with head "dpt", a `KeypointEstimator`, an `ObjectDetector` with a text tower, an
            `ImageTextModel`, a `MaskedAutoencoder` or an `ImageGPT`.
        repository: "ORG/NAME" or "USER/NAME".
        layout: "huggingface" (transformers) or "timm"; None: the first of these that can express the model;
            without a class token "timm" if it can.
        private: Whether a new repository is private; None: the account's default.
        license: License of the weights: its lowercase SPDX identifier, such as "apache-2.0".
        dataset: Training data: the name of a dataset on Hugging Face, or a description.
        metrics: dict of test scores on the dataset, such as {"accuracy": 0.93}.
        tags: Tags in addition to "keras_vit" and "vision-transformer".
        message: Commit message.

    Returns:
        URL of the repository as a str.

    Raises:
        ValueError: before anything is sent if no layout can express the model, with the reasons, or metrics
            are given without their dataset; if the hub refuses or does not answer.

    Example:
        >>> push_to_hub(model, "flowers")
        Traceback (most recent call last):
        ValueError: repository must be ORG/NAME or USER/NAME; got 'flowers'

    Source: huggingface_hub's `create_repo` and `create_commit`.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(repository)):
        raise ValueError(f"repository must be ORG/NAME or USER/NAME; got {repository!r}")
    from huggingface_hub import CommitOperationAdd, HfApi

    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary, "repository")
        write_repository(
            model, folder, repository, layout, license=license, dataset=dataset, metrics=metrics, tags=tags
        )
        files = [CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir())]
        api = HfApi()
        try:
            url = api.create_repo(repository, private=private, exist_ok=True)
            api.create_commit(repository, files, commit_message=message)
        except Exception as error:  # The library raises many kinds.
            cause = error.__cause__ or error  # of a failed upload of a file
            status = getattr(getattr(cause, "response", None), "status_code", None)
            advice = f"; {LOG_IN}" if status in (401, 403) else ""
            failed = f"the upload to {api.endpoint} failed ({type(cause).__name__}: {cause})"
            raise ValueError(one_line(f"{repository}: {failed}{advice}")) from error
    return str(url)


def write_repository(model, folder, repository, layout=None, **facts):
    """Write the files of a repository to a new folder.

    Args:
        model, repository, layout: As for `push_to_hub`.
        folder: pathlib.Path.
        **facts: `license`, `dataset`, `metrics` and `tags` of `push_to_hub`.

    Raises:
        ValueError: as `push_to_hub`.
    """
    name = _layout(model, layout)
    layout, architecture = LAYOUTS[name], None
    if layout.in_folder:
        save_weights(model, folder, name)
        (architecture,) = json.loads((folder / hub_config.CONFIG).read_text())["architectures"]
    else:
        folder.mkdir()
        save_weights(model, folder / "model.safetensors", name)
        for file, values in zip(layout.config_files, layout.write_config(model.get_config())):
            (folder / file).write_text(hub_config.as_text(values))
    (folder / "model.json").unlink()  # only needed by local folders
    preprocessing = image_model(model).preprocessing
    stored = layout.read_config(folder).get("preprocessing", {}).get("resize", "squash")
    if preprocessing.resize not in (stored, "squash"):  # Models of maps squash images whatever is stored.
        reason = f"preprocessing with resize={preprocessing.resize!r}"
        raise ValueError(f"the layout {name!r} cannot express this model: {reason}")
    card = model_card(model, name, repository, architecture, **facts)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _layout(model, requested):
    """The requested layout, or the first that can express the model."""
    optional(one_of(PUSHED)).check("layout", requested)
    name = parts_of(model).form
    fitting = [layout for layout in PUSHED if (form := LAYOUTS[layout].forms.get(name)) and form.usage]
    if requested and requested not in fitting:
        got = type(model).__name__
        raise ValueError(f"expected a VisionTransformer for the layout {requested!r}; got a {got}")
    if len(fitting) < 2:  # `save_weights` says why it cannot express a model.
        return (fitting or PUSHED)[0]
    refusals, config = [], model.get_config()
    # Without a class token transformers has only models of other names, such as I-JEPA.
    order = PUSHED if config["class_token"] else PUSHED[::-1]
    for layout in (requested,) if requested else order:
        reasons = LAYOUTS[layout].unsupported(config) + LAYOUTS[layout].unsupported_in_config(config)
        if not reasons:
            return layout
        refusals.append(f"the layout {layout!r} cannot express this model: {', '.join(reasons)}")
    raise ValueError("; ".join(refusals))
