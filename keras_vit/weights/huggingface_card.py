"""Model card of a repository on Hugging Face: metadata and usage."""

import re

from keras_vit.models.backbones import backbone
from keras_vit.rules import items, number, text
from keras_vit.variants import variant_of
from keras_vit.weights.kinds import parts_of
from keras_vit.weights.layouts import LAYOUTS


def model_card(
    model, layout, repository, architecture=None, *, license=None, dataset=None, metrics=None, tags=()
):
    """Write the text of README.md; unknown facts are omitted.

    Args:
        model: As for `push_to_hub`.
        layout: "huggingface" or "timm".
        repository: "ORG/NAME".
        architecture: Name of the class of transformers that reads the files, needed for models other than a
            `VisionTransformer`.
        license, dataset, metrics, tags: As for `push_to_hub`.

    Returns:
        Markdown with a metadata header as a str.

    Raises:
        ValueError: for metrics without their dataset.

    Source: huggingface.co/docs/hub/model-cards.
    """
    from huggingface_hub import EvalResult, ModelCardData

    if metrics and not dataset:
        raise ValueError(f"expected the dataset of the metrics; got {metrics!r} and no dataset")
    items(text).check("tags", tags)
    # NumPy's numbers would be objects of Python in the metadata.
    metrics = {metric: float(number().check(metric, value)) for metric, value in (metrics or {}).items()}
    parts, layout = parts_of(model), LAYOUTS[layout]
    task, does, arguments = parts.hub_words()
    config = backbone(model).get_config()
    name = repository.partition("/")[2]
    results = [
        EvalResult(task, re.sub(r"[^\w./-]+", "-", dataset.lower()), dataset, metric, value)
        for metric, value in metrics.items()
    ]
    data = ModelCardData(
        license=license,
        library_name=layout.library,
        pipeline_tag=task,
        tags=["keras_vit", "vision-transformer", *tags],
        datasets=[dataset] if dataset and re.fullmatch(r"[\w.-]+/[\w.-]+", dataset) else None,
        **({"model_name": name, "eval_results": results} if results else {}),
    )
    variant, parameters = variant_of(config), model.count_params()
    options = {name: value for name, value in config["preprocessing"].items() if value is not None}
    preparation = ", ".join(f"{name} {value}" for name, value in options.items())
    scores = [f"{metric} {value:.4g}" for metric, value in metrics.items()]
    trained = [f"Trained on {dataset}."] * bool(dataset)
    trained += [f"Test split: {', '.join(scores)}."] * bool(scores)
    usage = layout.forms[parts.form].usage.format(task=task, repository=repository, architecture=architecture)
    return f"""---
{data}
---

# {name}

Vision Transformer{f" {variant}" if variant else ""} for {does}, {parameters / 1e6:,.1f} million parameters, \
saved by keras_vit.

```python
import keras_vit

model = keras_vit.from_pretrained("hf://{repository}"{arguments})
```

or with {layout.library}:

```python
{usage}
```

## Images

{preparation}

## Training

{" ".join(trained) or "Not stated."}

## License

{license or "Not stated."}
"""
