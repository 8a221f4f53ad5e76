"""Models that are restored from the arguments of their constructor and the state of their layers."""

from keras_vit.layers.dense import restoring, state_config, without_state
from keras_vit.models.distributed import DistributedModel


class ConfiguredModel(DistributedModel):
    """A model with a constructor of its own, whose configuration has its arguments and its layers' state.

    A subclass adds the constructor's other arguments to `get_config`.
    """

    def get_config(self):
        return {"name": self.name, "trainable": self.trainable, **state_config(self._own_layers())}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        with restoring(config) as freeze:
            model = cls(**without_state(config))
            freeze(model._own_layers())
        return model

    def _own_layers(self):
        """The layers whose state is in this configuration, and not in that of a model within it."""
        return self.layers
