from made.commands import json_of, keras_vit, refused, script  # noqa: F401
from made.runs import labeled  # noqa: F401
from made.saved import litert, saved  # noqa: F401
