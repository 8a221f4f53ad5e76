"""Model card of a repository on Hugging Face: metadata and usage."""

import re

from keras_vit.variants import variant_of

USAGE = {
    "huggingface": 'from transformers import pipeline\n\nmodel = pipeline("{task}", model="{repository}")',
    "timm": 'import timm\n\nmodel = timm.create_model("hf_hub:{repository}", pretrained=True)',
}
LIBRARIES = {"huggingface": "transformers", "timm": "timm"}


def model_card(config, parameters, layout, repository, *, licence=None, dataset=None, metrics=None, tags=()):
    """Write the text of README.md; unknown facts are omitted.

    Args:
        config: `model.get_config()`.
        parameters: Parameter count.
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
    task = "image-classification" if config["num_classes"] else "image-feature-extraction"
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
    variant = variant_of(config)
    classes = config["num_classes"]
    does = f"classification into {classes} classes" if classes else "feature vectors of images"
    preparation = ", ".join(f"{key} {value}" for key, value in config["preprocessing"].items())
    scores = [f"{metric} {value:.4g}" for metric, value in (metrics or {}).items()]
    trained = [f"Trained on {dataset}."] * bool(dataset)
    trained += [f"Test split: {', '.join(scores)}."] * bool(scores)
    usage = USAGE[layout].format(task=task, repository=repository)
    return f"""---
{data}
---

# {name}

Vision Transformer{f" {variant}" if variant else ""} for {does}, {parameters / 1e6:,.1f} million parameters, \
saved by keras_vit.

```python
import keras_vit

model = keras_vit.from_pretrained("hf://{repository}")
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
