"""How a model is trained: the step on each backend, devices, optimizers, and adapted weights."""
