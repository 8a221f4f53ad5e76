"""Model card of a repository on Hugging Face: metadata and usage."""

import re

from keras_vit.models import ImageSegmenter, ImageTextModel
from keras_vit.variants import variant_of

USAGE = {
    "huggingface": 'from transformers import pipeline\n\nmodel = pipeline("{task}", model="{repository}")',
    "timm": 'import timm\n\nmodel = timm.create_model("hf_hub:{repository}", pretrained=True)',
}
LIBRARIES = {"huggingface": "transformers", "timm": "timm"}


def model_card(model, layout, repository, *, licence=None, dataset=None, metrics=None, tags=()):
    """Write the text of README.md; unknown facts are omitted.

    Args:
        model: As for `push_to_hub`.
        layout: "huggingface" or "timm".
        repository: "ORG/NAME".
        licence, dataset, metrics, tags: As for `push_to_hub`.

    Returns:
        Markdown with a metadata header as a str.

    Raises:
        ValueError: for metrics without their dataset.

    Source: huggingface.co/docs/hub/model-cards.
    """
    from huggingface_hub import EvalResult, ModelCardData

    if metrics and not dataset:
        raise ValueError(f"expected the dataset of the metrics; got {metrics!r} and no dataset")
    task, does, config, argument = _described(model)
    name = repository.partition("/")[2]
    results = [
        EvalResult(task, re.sub(r"[^\w./-]+", "-", dataset.lower()), dataset, metric, value)
        for metric, value in (metrics or {}).items()
    ]
    data = ModelCardData(
        license=licence,
        library_name=LIBRARIES[layout],
        pipeline_tag=task,
        tags=["keras_vit", "vision-transformer", *tags],
        datasets=[dataset] if dataset and re.fullmatch(r"[\w.-]+/[\w.-]+", dataset) else None,
        **({"model_name": name, "eval_results": results} if results else {}),
    )
    variant, millions = variant_of(config), model.count_params() / 1e6
    preparation = ", ".join(f"{key} {value}" for key, value in config["preprocessing"].items())
    scores = [f"{metric} {value:.4g}" for metric, value in (metrics or {}).items()]
    trained = [f"Trained on {dataset}."] * bool(dataset)
    trained += [f"Test split: {', '.join(scores)}."] * bool(scores)
    usage = USAGE[layout].format(task=task, repository=repository)
    return f"""---
{data}
---

# {name}

Vision Transformer{f" {variant}" if variant else ""} for {does}, {millions:,.1f} million parameters, \
saved by keras_vit.

```python
import keras_vit

model = keras_vit.from_pretrained("hf://{repository}"{argument})
```

or with {LIBRARIES[layout]}:

```python
{usage}
```

## Images

{preparation}

## Training

{" ".join(trained) or "Not stated."}

## Licence

{licence or "Not stated."}
"""


def _described(model):
    """The task on Hugging Face, the purpose, the configuration of the image encoder, a loading argument."""
    if isinstance(model, ImageTextModel):
        purpose = "the comparison of images with texts"
        return "zero-shot-image-classification", purpose, model.image.get_config(), ", text_tower=True"
    if isinstance(model, ImageSegmenter):
        purpose = f"segmentation into {model.num_classes} classes"
        return "image-segmentation", purpose, model.encoder.get_config(), ""
    if model.num_classes:
        purpose = f"classification into {model.num_classes} classes"
        return "image-classification", purpose, model.get_config(), ""
    return "image-feature-extraction", "feature vectors of images", model.get_config(), ""
