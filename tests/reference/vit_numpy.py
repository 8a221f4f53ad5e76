"""A Vision Transformer in float64 NumPy, written from the paper and its code, not from ours.

It shares nothing with the package but the names of the variables and of the options.
"""

import math

import numpy as np

GELU_TANH = math.sqrt(2 / math.pi)
_erf = np.vectorize(math.erf, otypes=["float64"])

ACTIVATIONS = {
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(GELU_TANH * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
# The options of a block without the parts of newer families.
PLAIN = {"norm": "layer", "norm_epsilon": 1e-6, "activation": "gelu_tanh", "post_norm": False, "rotary": None}
# What a stem adds: to a kernel's deviation, to its variance, to the variance of a group norm.
RESNET_EPSILONS = {"vit_jax": (1e-5, 0, 1e-6), "timm": (0, 1e-8, 1e-5)}


def forward(arrays, images, c):
    """Stages by name, from the model's arrays by variable path and its options `c`."""
    w = {name: np.asarray(array, "float64") for name, array in arrays.items()}
    x = np.asarray(images, "float64")
    if c["resnet"] is not None:
        x = resnet(w, x, c["resnet"], RESNET_EPSILONS[c["resnet_form"]])
    padding = ((0, 0), *[(c["patch_padding"],) * 2] * 2, (0, 0))
    x = patch_embedding(np.pad(x, padding), w["patch_embedding/kernel"], w.get("patch_embedding/bias", 0))
    batch, rows, columns, width = x.shape
    x = x.reshape(batch, rows * columns, width)
    x = norm(w, "patch_norm", x, c) if c["patch_norm"] else x
    if c["num_layers"] is not None:
        names = ("class_token", "distillation_token", "register_tokens")
        prefix = [w[f"{n}/token"].repeat(batch, 0) for n in names if f"{n}/token" in w]
        count = sum(p.shape[1] for p in prefix)
        positions = {
            "learned": lambda: w["position_embedding/table"],
            "sincos2d": lambda: np.pad(
                sincos(rows, columns, width), ((count * c["prefix_positions"], 0), (0, 0))
            ),
            "none": lambda: 0,
        }[c["position_embedding"]]()
        if c["prefix_positions"]:
            x = np.concatenate([*prefix, x], 1) + positions
        else:
            x = np.concatenate([*prefix, x + positions], 1)
        x = norm(w, "pre_norm", x, c) if c["pre_norm"] else x
        for i in range(c["num_layers"]):
            x = block(w, f"encoder_block_{i}", x, c, positions_of_block(w, i, rows, columns, c))
        x = norm(w, "encoder_norm", x, c) if c["final_norm"] and not c["norm_after_pooling"] else x
    else:
        count = 0
    stages = {"tokens": x}

    if c["pooling"] == "token":
        x = x[:, : 1 + c["distillation"]].mean(1)
    elif c["pooling"] == "gap":
        x = x[:, count:].mean(1)
    elif c["pooling"] == "token_gap":
        x = np.concatenate([x[:, 0], x[:, count:].mean(1)], 1)
    elif c["pooling"] == "map":
        x = attention_pooling(w, "attention_pooling", x if c["pool_prefix"] else x[:, count:], c)
    stages["pooled"] = x
    x = norm(w, "pooled_norm", x, c) if c["norm_after_pooling"] else x
    x = np.tanh(dense(w, "pre_logits", x)) if c["representation_size"] else x
    stages["representation"] = x
    if c["distillation"]:
        heads = ("head", "head_distillation")
        stages["logits"] = sum(dense(w, h, stages["tokens"][:, i]) for i, h in enumerate(heads)) / 2
    elif c["num_classes"]:
        stages["logits"] = dense(w, "head", x)
    return stages


def patch_embedding(x, kernel, bias=0):
    height, width = kernel.shape[:2]
    return conv(x, kernel, (height, width), padding="valid") + bias


def block(w, name, x, c, positions=None):
    before, after = (lambda n, y: y), (lambda n, y: norm(w, f"{name}/{n}", y, c))
    before, after = (before, after) if c["post_norm"] else (after, before)
    y = before("attention_norm", x)
    y = after("attention_norm", attention(w, f"{name}/attention", y, y, c, positions))
    x = x + y * w.get(f"{name}/attention_scale/gamma", 1)
    y = after("mlp_norm", mlp(w, f"{name}/mlp", before("mlp_norm", x), c))
    return x + y * w.get(f"{name}/mlp_scale/gamma", 1)


def attention(w, name, query, tokens, c, positions=None):
    scores, v = attention_scores(w, name, query, tokens, c, positions)
    y = (scores @ v).swapaxes(1, 2)  # (batch, queries, heads, head size)
    if f"{name}/output_norm/gamma" in w:
        y = norm(w, f"{name}/output_norm", y.reshape(*y.shape[:2], -1), c).reshape(y.shape)
    return np.einsum("bthd,hdc->btc", y, w[f"{name}/out/kernel"]) + w.get(f"{name}/out/bias", 0)


def attention_scores(w, name, query, tokens, c, positions=None):
    """The weights (batch, heads, queries, keys), and the values (batch, heads, keys, head size)."""

    def project(part, x):
        y = np.einsum("btc,chd->bhtd", x, w[f"{name}/{part}/kernel"])
        y = y + np.expand_dims(w.get(f"{name}/{part}/bias", np.zeros((1, 1))), 1)
        y = norm(w, f"{name}/{part}_norm", y, c) if f"{name}/{part}_norm/gamma" in w else y
        if positions is not None and part != "value" and c["rotary"]:
            y = rotated(y, positions, halves=c["rotary"]["kind"] == "dinov3")
        return y

    q, k, v = project("query", query), project("key", tokens), project("value", tokens)
    k, v = (np.repeat(a, q.shape[1] // k.shape[1], axis=1) for a in (k, v))
    logits = q / math.sqrt(q.shape[-1]) @ k.swapaxes(-1, -2)
    if f"{name}/position_bias/table" in w:
        logits = logits + w[f"{name}/position_bias/table"][positions].transpose(2, 0, 1)
    return softmax(logits), v


def positions_of_block(w, index, rows, columns, c):
    """The angles of the rotated tokens, (heads or 1, tokens, head size / 2); or the rows of the bias table
    by query and key; or None."""
    places = [(row, column) for row in range(rows) for column in range(columns)]
    if c["relative_positions"]:
        last = (2 * rows - 1) * (2 * columns - 1)
        table = np.array(
            [
                [(y - v + rows - 1) * (2 * columns - 1) + x - u + columns - 1 for v, u in places]
                for y, x in places
            ]
        )
        if c["class_token"]:
            table = np.pad(table, ((1, 0), (1, 0)), constant_values=last + 1)
            table[0], table[0, 0] = last, last + 2
        return table
    if not c["rotary"]:
        return None
    o, size = c["rotary"], c["hidden_size"] // c["num_heads"]
    if o["kind"] == "dinov3":
        points = [(2 * (y + 0.5) / rows - 1, 2 * (x + 0.5) / columns - 1) for y, x in places]
    else:
        scale = np.divide(o["reference_grid"], (rows, columns)) if o["reference_grid"] else np.ones(2)
        points = [((y + o["offset"]) * scale[0], (x + o["offset"]) * scale[1]) for y, x in places]
    points = np.array(points)[:, ::-1] if o["order"] == "xy" else np.array(points)
    if o["kind"] == "mixed":
        frequencies = w["rotary_positions/frequencies"][:, index]  # (2, heads, size / 2)
        angles = np.einsum("na,ahf->hnf", points, frequencies)
    else:
        angles = axial(points, size, o["base"])[np.newaxis] * (2 * math.pi if o["kind"] == "dinov3" else 1)
    if o["rotate_registers"] and c["num_registers"]:
        side = math.isqrt(c["num_registers"])
        square = np.array([(row, column) for row in range(side) for column in range(side)])
        registers = np.broadcast_to(axial(square, size, 100), (len(angles), side * side, size // 2))
        angles = np.concatenate([registers, angles], axis=1)
    return angles


def axial(points, size, base):
    return np.concatenate(
        [points[:, [axis]] * [base ** (-4 * j / size) for j in range(size // 4)] for axis in (0, 1)], axis=1
    )


def rotated(x, angles, halves):
    """Pairs of channels as complex numbers, turned by the angles; tokens before those with angles stay."""
    first = x.shape[2] - angles.shape[1]
    y, half = x[:, :, first:], x.shape[-1] // 2
    a, b = (y[..., :half], y[..., half:]) if halves else (y[..., 0::2], y[..., 1::2])
    z = (a + 1j * b) * np.exp(1j * angles)
    if halves:
        y = np.concatenate([z.real, z.imag], axis=-1)
    else:
        y = np.stack([z.real, z.imag], axis=-1).reshape(y.shape)
    return np.concatenate([x[:, :, :first], y], axis=2)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def mlp(w, name, x, c):
    activate = ACTIVATIONS[c["activation"]]
    if f"{name}/gate/kernel" in w:
        y = activate(dense(w, f"{name}/gate", x)) * dense(w, f"{name}/up", x)
    else:
        y = activate(dense(w, f"{name}/dense_0", x))
    y = norm(w, f"{name}/hidden_norm", y, c) if f"{name}/hidden_norm/gamma" in w else y
    return dense(w, f"{name}/dense_1", y)


def attention_pooling(w, name, x, c):
    y = attention(w, f"{name}/attention", w[f"{name}/probe"].repeat(len(x), 0), x, c)
    return (y + mlp(w, f"{name}/mlp", layer_norm(w, f"{name}/mlp_norm", y, c), c))[:, 0]


def dense(w, name, x):
    return x @ w[f"{name}/kernel"] + w.get(f"{name}/bias", 0)


def norm(w, name, x, c):
    return (layer_norm if c["norm"] == "layer" else rms_norm)(w, name, x, c)


def rms_norm(w, name, x, c):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + c["norm_epsilon"]) * w[f"{name}/gamma"]


def layer_norm(w, name, x, c):
    centered = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centered**2).mean(-1, keepdims=True) + c["norm_epsilon"])
    return centered / deviation * w[f"{name}/gamma"] + w[f"{name}/beta"]


def sincos(rows, columns, width):
    """One vector a cell: sines and cosines of the column, then of the row."""
    omega = [10_000 ** (-i / (width / 4 - 1)) for i in range(width // 4)]
    return np.array(
        [
            [f(place * o) for place in (column, row) for f in (math.sin, math.cos) for o in omega]
            for row in range(rows)
            for column in range(columns)
        ]
    )


def resnet(w, x, stages, epsilons):
    x = std_conv(x, w["conv_root/kernel"], 2, epsilons=epsilons)
    x = max_pool(np.maximum(group_norm(w, "gn_root", x, epsilon=epsilons[2]), 0))
    for stage, units in enumerate(stages):
        for unit in range(units):
            name, stride = f"block{stage + 1}_unit{unit + 1}", 2 if stage and not unit else 1
            x = bottleneck(w, name, x, stride, epsilons)
    return x


def bottleneck(w, name, x, stride, epsilons):
    def normed_conv(x, suffix, stride):
        x = std_conv(x, w[f"{name}_conv{suffix}/kernel"], stride, epsilons=epsilons)
        return group_norm(w, f"{name}_gn{suffix}", x, epsilon=epsilons[2])

    y = x
    for i, s in ((1, 1), (2, stride), (3, 1)):
        y = normed_conv(y, i, s)
        y = np.maximum(y, 0) if i < 3 else y
    if f"{name}_conv_proj/kernel" in w:
        x = normed_conv(x, "_proj", stride)
    return np.maximum(x + y, 0)


def std_conv(x, kernel, stride=1, padding="same", epsilons=RESNET_EPSILONS["vit_jax"]):
    kernel = np.asarray(kernel, "float64")
    to_deviation, to_variance, _ = epsilons
    deviation = np.sqrt(kernel.var((0, 1, 2)) + to_variance) + to_deviation
    return conv(x, (kernel - kernel.mean((0, 1, 2))) / deviation, (stride, stride), padding)


def conv(x, kernel, strides, padding):
    windows = _windows(x, kernel.shape[:2], strides, padding, 0)
    return np.einsum("bhwcij,ijco->bhwo", windows, kernel, optimize=True)


def max_pool(x):
    return _windows(x, (3, 3), (2, 2), "same", -np.inf).max((-1, -2))


def _windows(x, size, strides, padding, fill):
    """(batch, rows, columns, channels, size…) of windows; SAME puts the odd pixel last, as TensorFlow."""
    if padding == "same":
        total = [max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in zip(x.shape[1:3], size, strides)]
        pads = ((0, 0), *((t // 2, t - t // 2) for t in total), (0, 0))
        x = np.pad(x, pads, constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(x, size, axis=(1, 2))
    return windows[:, :: strides[0], :: strides[1]]


def group_norm(w, name, x, groups=32, epsilon=1e-6):
    batch, height, width, channels = x.shape
    y = x.reshape(batch, height * width, groups, channels // groups)
    y = (y - y.mean((1, 3), keepdims=True)) / np.sqrt(y.var((1, 3), keepdims=True) + epsilon)
    return y.reshape(x.shape) * w[f"{name}/gamma"] + w[f"{name}/beta"]
