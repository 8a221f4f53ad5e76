"""Configurations with one field replaced: next to checkpoints, in `.keras` files, exports and runs."""

import copy
import dataclasses
import functools
import io
import json
import math
import pathlib
import tempfile
import zipfile
from collections.abc import Callable

import numpy as np
import onnx
from made.archives import zipped
from made.checkpoints import base, made_model
from reference.small import small

from keras_vit.export.onnx import export_onnx
from keras_vit.export.saved_model import export_saved_model
from keras_vit.weights.layouts import LAYOUTS

DEEP = functools.reduce(lambda inner, _: [inner], range(50), 1)
VALUES = {
    **{"null": None, "true": True, "negative": -1, "zero": 0, "one": 1, "fraction": 0.5, "large": 10**9},
    **{"huge": 10**400, "tiny": 1e-320, "nan": math.nan, "inf": math.inf, "text": "16", "long": "x" * 10**6},
    **{"control": "\x1b[31m\n", "empty": [], "list": [1, 2, 3, 4, 5], "negatives": [-1, -1, -1]},
    **{"tiny ones": [1e-320] * 3, "texts": ["a", "b\n"], "object": {"a": 1}, "deep": DEEP, "missing": ...},
}


@dataclasses.dataclass(frozen=True)
class Document:
    """A configuration and the file that it belongs to.

    Attributes:
        values: The valid configuration.
        write: (folder, text) → path to read.
        restated: The configuration of the loaded model → the same in the document's words.
        read: Name of the function of `made.attacked`.
        inside: Names of the objects whose fields are replaced; "" for the document itself.
        unread: Fields that are not read, because the arrays determine them or only people read them.
        folded: Fields that become part of others, such as a scale of the mean.
    """

    values: dict
    write: Callable
    restated: Callable = lambda config: config
    read: str = "load"
    inside: tuple = ("",)
    unread: tuple = ()
    folded: tuple = ()

    @property
    def fields(self):
        """(part, name) of each field, and of an unknown one."""
        return [(part, name) for part in self.inside for name in [*self._part(self.values, part), "unknown"]]

    def changed(self, part, name, value):
        """The text with another value; `...` removes the field."""
        values = copy.deepcopy(self.values)
        self._part(values, part)[name] = value
        if value is ...:
            del self._part(values, part)[name]
        return json.dumps(values)

    def value_in(self, config, part, name):
        return self._part(self.restated(config), part).get(name)

    @staticmethod
    def _part(values, part):
        for name in filter(None, part.split(".")):
            values = values[name]
        return values


def _checkpoint(name, file, restated, others=(), **options):
    """A metadata file of a made checkpoint; the other files do not change."""
    texts = base(name).metadata
    values = json.loads(texts[file])
    values.pop("digest", None)  # a changed configuration would not match it

    def write(folder, text):
        return base(name).write(folder, metadata={**{other: texts[other] for other in others}, file: text})

    return Document(values, write, restated, **options)


def _transformers(number):
    return lambda config: json.loads(LAYOUTS["huggingface"].write_config(config)[number])


def _timm():
    def restated(config):
        return json.loads(LAYOUTS["timm"].write_config(config)[0])

    def write(folder, text):
        return base("timm_mu").write(folder, metadata={"config.json": text})

    values = restated(made_model("timm_mu").get_config())
    in_arrays = {*values["model_args"]} - {"num_heads", "act_layer"} | {"num_features"}
    for_timm = {"first_conv", "classifier", "fixed_input_size"}
    inside = ("", "model_args", "pretrained_cfg")
    return Document(values, write, restated, inside=inside, unread=(*in_arrays, *for_timm))


def _keras():
    with tempfile.TemporaryDirectory() as folder:
        small().save(pathlib.Path(folder) / "model.keras")
        with zipfile.ZipFile(pathlib.Path(folder) / "model.keras") as archive:
            members = {name: archive.read(name) for name in archive.namelist()}

    def write(folder, text):
        (folder / "model.keras").write_bytes(zipped({**members, "config.json": text}.items()))
        return folder / "model.keras"

    values = json.loads(members["config.json"])
    inside = ("config", "config.preprocessing")
    return Document(
        values, write, lambda config: {"config": config}, inside=inside, unread=("name", "trainable")
    )


def _export():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        saved = export_saved_model(small(class_names=list("abcde")), folder / "saved", warmup=())
        model = onnx.load(export_onnx(saved, folder / "model.onnx"))
    properties = {item.key: item for item in model.metadata_props}
    values = json.loads(properties["keras_vit.json"].value)

    def write(folder, text):
        properties["keras_vit.json"].value = text
        file = io.BytesIO()
        onnx.save(model, file)
        (folder / "model.onnx").write_bytes(file.getvalue())
        return folder / "model.onnx"

    return Document(values, write, read="run_export", inside=("", "architecture"))


def _run():
    values = {"dataset": "digits", "recipe": {"seed": 3, "task": "single_label", "batch_size": 8}}

    def write(folder, text):
        small().save(folder / "model.keras")
        (folder / "config.json").write_text(text)
        record = {"steps": 2, "train_seconds": 0.1, "replicas": 1, "bad_images": []}
        (folder / "result.json").write_text(json.dumps(record))
        return folder

    return Document(values, write, read="read_run", inside=("", "recipe"), unread=("dataset", "batch_size"))


_CONFIG, _PREPROCESSOR = "config.json", "preprocessor_config.json"
DOCUMENTS = {
    "ours": lambda: _checkpoint(
        "token_metadata",
        "model.json",
        lambda config: {"arguments": config},
        inside=("arguments", "arguments.preprocessing"),
        unread=("arguments.preprocessing.image_size",),
    ),
    "transformers": lambda: _checkpoint(
        "hf_mu",
        _CONFIG,
        _transformers(0),
        [_PREPROCESSOR],
        unread=(
            "hidden_dropout_prob",
            "attention_probs_dropout_prob",
            "pooler_act",
            "pooler_output_size",
            "label2id",
            "architectures",
        ),
    ),
    "preprocessor": lambda: _checkpoint(
        "hf_mu",
        _PREPROCESSOR,
        _transformers(1),
        [_CONFIG],
        unread=("image_processor_type",),
        folded=("do_rescale", "rescale_factor", "do_normalize"),
    ),
    "timm": _timm,
    "keras": _keras,
    "export": _export,
    "run": _run,
}


@functools.cache
def document(name):
    return DOCUMENTS[name]()


def drawn(name, number):
    """Case `number` of a document: the part, the field and the name in VALUES."""
    cases = [(*field, value) for field in document(name).fields for value in VALUES]
    return cases[np.random.default_rng([*name.encode()]).permutation(len(cases))[number]]
