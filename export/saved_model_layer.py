"""A SavedModel as a layer of Keras 3: what `hub.KerasLayer` is for Keras 2."""

from __future__ import annotations

import base64
import inspect
import os
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.saving import serialization_lib  # Keras has no public name for its safe mode.

from keras_vit.export.tar_archive import pack_program, saved_model_folder
from keras_vit.types import Path, Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class SavedModelLayer(keras.layers.Layer):
    """A reusable SavedModel, ours or another publisher's, inside a Keras 3 model.

    The layer's weights are the SavedModel's own variables, not copies: `fit` trains them if `trainable`,
    and the SavedModel's weight penalties are among the `losses`. As with `hub.KerasLayer`, a frozen layer
    also runs in inference mode, without dropout.

    It computes in the types that it was exported in, under every dtype policy: floating-point inputs are
    cast to its input types, and its outputs to the policy's compute dtype. Under a `tf.distribute` strategy,
    create it in the strategy's scope.

    A `.keras` file with this layer is self-contained: it holds the SavedModel's graph, its assets and the
    current values of the weights, so the SavedModel itself is not needed to load the file. Since a
    SavedModel is a program, such a file is loaded with `safe_mode=False` only, after
    `import keras_vit.export.saved_model_layer`.

    Args:
        handle: The SavedModel, as `saved_model_folder` takes it: a folder, a `.tar.gz` or a URL.
        trainable: Whether its trainable variables are trained.
        signature: Name of the signature to call, such as "serving_default"; None calls the object
            itself. A signature cannot be trained.
        output: Name of the output to return, if the outputs are a dict; None for the dict, or for its
            only value.
        trust: Whether the publisher of a URL is trusted, as for `saved_model_folder`.
        name, dtype: As in every layer.

    Call arguments:
        inputs: The SavedModel's input; our own exports take float32 images in [0, 1].
        training: Whether to run in training mode; without effect if the layer is not trainable.

    Raises:
        ValueError: if there is no SavedModel, its URL is not trusted, it has no such signature or output,
            cannot be called with one input, or has no trainable variables with `trainable=True`.

    Example:
        >>> folder = export_saved_model(model, "export/saved_model/1")
        >>> layer = SavedModelLayer(folder, trainable=True)
        >>> layer(images).shape, len(layer.trainable_variables) == len(model.trainable_variables)
        (TensorShape([4, 10]), True)
        >>> SavedModelLayer(folder, signature="serving_default", output="probabilities")(images).shape
        TensorShape([4, 10])

    Source: TF Hub's reusable SavedModel interface; `tensorflow_hub/keras_layer.py` for when it trains.
    """

    def __init__(
        self,
        handle: Path,
        trainable: bool = False,
        signature: str | None = None,
        output: str | None = None,
        trust: bool = False,
        **kwargs: Any,
    ) -> None:
        if keras.backend.backend() != "tensorflow":
            raise ValueError(f"a SavedModel runs on TensorFlow; Keras's backend is {keras.backend.backend()}")
        if trainable and signature is not None:
            raise ValueError(f"a signature cannot be trained; drop signature={signature!r} or trainable")
        embedded = kwargs.pop("embedded", False)  # `from_config` alone gives it.
        super().__init__(autocast=False, **kwargs)
        self.handle, self.signature, self.output_name = os.fspath(handle), signature, output
        self.trainable = trainable
        if not embedded:
            self._open(saved_model_folder(handle, trust=trust))
            self.built = True

    def build(self, input_shape: Shape) -> None:
        """Open the SavedModel of a layer from a config without an embedded one."""
        self._open(saved_model_folder(self.handle, trust=True))  # `from_config` requires trust.

    def get_build_config(self) -> dict[str, Any]:
        return {"program": base64.b64encode(self._program).decode()}

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Open the SavedModel in a `.keras` file."""
        with tempfile.TemporaryDirectory() as folder:
            archive = pathlib.Path(folder) / "embedded.tar.gz"
            archive.write_bytes(base64.b64decode(config["program"]))
            self._open(saved_model_folder(archive))

    def _open(self, folder: pathlib.Path) -> None:
        """Load the SavedModel and wrap its variables.

        Without stored values, as in a `.keras` file, the variables stay uninitialized until Keras assigns
        the file's weights.
        """
        without_values = not (folder / "variables").is_dir()
        options = tf.saved_model.LoadOptions(experimental_skip_checkpoint=without_values)
        # The functions alone would not keep the object's variables alive.
        self._restored = tf.saved_model.load(os.fspath(folder), options=options)
        self._program = pack_program(folder, with_values=_has_more_values(folder, self._restored))
        self._run, spec = _function(self._restored, self.signature, self.handle)
        if isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None:
            self.input_spec = keras.InputSpec(shape=spec.shape, name=spec.name)
        trainable, self.trainable = self.trainable, True  # Keras sorts variables when it tracks them.
        self._wrapped = self._wrap_variables()
        if trainable and not any(variable.trainable for variable in self._wrapped):
            raise ValueError(f"{self.handle!r} has no trainable variables; drop trainable=True")
        self.trainable = trainable

    def _wrap_variables(self) -> list[keras.Variable]:
        """Keras variables around TensorFlow's."""
        trained = () if self.signature else getattr(self._restored, "trainable_variables", ())
        trained = {id(v) for v in trained}
        variables = []
        for v in getattr(self._restored, "variables", ()):
            name = v.name.partition(":")[0].replace("/", "_")
            options = {"shape": v.shape, "dtype": v.dtype, "trainable": id(v) in trained, "autocast": False}
            variables.append(keras.Variable(v, name=name, **options))
        penalties = getattr(self._restored, "regularization_losses", ())
        if penalties and trained:
            # As the regularizer of one variable, their sum is counted once, and only while it is trained.
            first = next(v for v in variables if v.trainable)
            first.regularizer = _Sum(penalties)
        return variables

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        outputs = self._run(inputs, bool(training and self.trainable))
        named = outputs if isinstance(outputs, dict) else {}
        if self.output_name is not None:
            if self.output_name not in named:
                raise ValueError(
                    f"{self.handle!r} has no output {self.output_name!r}; it has {sorted(named)}"
                )
            outputs = named[self.output_name]
        elif len(named) == 1:
            (outputs,) = named.values()
        return keras.tree.map_structure(lambda x: _cast(x, self.compute_dtype), outputs)

    def get_config(self) -> dict[str, Any]:
        options = {"handle": self.handle, "signature": self.signature, "output": self.output_name}
        # Setting `trainable` of a whole model also sets it on layers that have nothing to train.
        trainable = bool(self.trainable_variables) if self.built else self.trainable
        return {**super().get_config(), **options, "trainable": trainable}

    @classmethod
    def from_config(
        cls,
        config: dict[str, Any],
        custom_objects: dict[str, Any] | None = None,
        safe_mode: bool | None = None,
    ) -> SavedModelLayer:
        if (serialization_lib.in_safe_mode() if safe_mode is None else safe_mode) is not False:
            raise ValueError(
                f"this model runs the SavedModel {config.get('handle')!r}, which is a program; if you trust "
                "it, load with safe_mode=False or call keras.config.enable_unsafe_deserialization()"
            )
        return cls(**config, embedded=True)


def _has_more_values(folder: pathlib.Path, restored: Any) -> bool:
    """Whether a SavedModel stores values other than those of its `variables`, such as a table's."""
    if not (folder / "variables").is_dir():
        return False
    bookkeeping = ("_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter/")
    stored = tf.train.list_variables(os.fspath(folder / "variables/variables"))
    stored = [name for name, _ in stored if not name.startswith(bookkeeping)]
    return len(stored) > len({id(variable) for variable in getattr(restored, "variables", ())})


def _function(loaded: Any, signature: str | None, handle: str) -> tuple[Callable[[Any, bool], Any], Any]:
    """The function (inputs, training) → outputs, and the spec of its input, None if it has several."""
    if signature is not None:
        return _signature(loaded, signature, handle)
    if not callable(loaded):
        raise ValueError(
            f"{handle!r} cannot be called, so it is no reusable SavedModel; "
            f"give one of its signatures: {sorted(loaded.signatures)}"
        )
    function = loaded.__call__
    parameters = inspect.signature(function)
    try:
        parameters.bind("inputs")
        first, *others = (traced.structured_input_signature[0][0] for traced in function.concrete_functions)
    except (TypeError, IndexError, ValueError):
        raise ValueError(f"{handle!r} cannot be called with one input: it takes {parameters}") from None
    spec = first if all(other == first for other in others) else None
    mode = "training" in parameters.parameters

    def run(inputs: Any, training: bool) -> Any:
        return loaded(_as_traced(inputs, spec), **({"training": training} if mode else {}))

    return run, spec


def _signature(
    loaded: Any, name: str, handle: str
) -> tuple[Callable[[Any, bool], dict[str, Tensor]], tf.TensorSpec | None]:
    """The same for a signature, which cannot be trained."""
    if name not in loaded.signatures:
        raise ValueError(f"{handle!r} has no signature {name!r}; it has {sorted(loaded.signatures)}")
    function = loaded.signatures[name]
    specs = function.structured_input_signature[1]

    def run(inputs: Tensor | dict[str, Tensor], training: bool) -> dict[str, Tensor]:
        if len(specs) == 1 and not isinstance(inputs, dict):
            inputs = dict.fromkeys(specs, inputs)
        if not isinstance(inputs, dict) or inputs.keys() != specs.keys():
            got = sorted(inputs) if isinstance(inputs, dict) else type(inputs).__name__
            raise ValueError(f"the signature {name!r} takes a dict of {sorted(specs)}; got {got}")
        return function(**_as_traced(inputs, specs))

    return run, next(iter(specs.values())) if len(specs) == 1 else None


def _as_traced(inputs: Any, specs: Any) -> Any:
    """Tensors of the types that a function was traced with."""

    def convert(x: Tensor, spec: tf.TensorSpec) -> Tensor:
        x = _cast(x, spec.dtype)
        if x.dtype != spec.dtype:  # Pixels of 0…255 must not pass for images in [0, 1].
            raise ValueError(f"the SavedModel takes {spec.dtype.name}; got {x.dtype.name}")
        return x

    return inputs if specs is None else keras.tree.map_structure(convert, inputs, specs)


class _Sum(keras.regularizers.Regularizer):
    """The sum of some penalties, functions without arguments."""

    def __init__(self, penalties: Sequence[Callable[[], Tensor]]) -> None:
        self.penalties = penalties

    def __call__(self, variable: keras.Variable) -> Tensor:
        return tf.add_n([penalty() for penalty in self.penalties])


def _cast(x: Tensor, dtype: str | tf.DType) -> Tensor:
    """A float tensor in another float type; others unchanged."""
    x, dtype = tf.convert_to_tensor(x), tf.as_dtype(dtype)
    return tf.cast(x, dtype) if x.dtype.is_floating and dtype.is_floating else x
