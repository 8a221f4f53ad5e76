"""Damaged checkpoints of every layout: each is refused in one line that says what is wrong.

Case number i is drawn with `np.random.default_rng(i)`: a base checkpoint, a kind of damage, a key. What
leaves another valid checkpoint is listed in `another_checkpoint`, with the reason; such a draw is made
again, and tests of its own show that it loads and what refuses it.
"""

import dataclasses
import hashlib
import io
import itertools
import json
import math
import os
import pathlib
import re
import struct
import tempfile
import zipfile

import ml_dtypes
import numpy as np
import pytest
from made import checkpoints
from made.checkpoints import HEADS, NAMES, base
from made.checkpoints import write as write_file
from made.sampling import some

from keras_vit import VisionTransformer, from_pretrained, variants
from keras_vit.weights import catalogue
from keras_vit.weights.archive import read_arrays
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.metadata import sidecar_text

N = 1000 if "FULL" in os.environ else 100

# What a model's arguments are read off: where one of these is changed or gone, the others do not fit.
TOLD_OF = {
    "patch_embedding/kernel": "patch_size|hidden_size|in_channels",
    "conv_root/kernel": "in_channels|resnet_width|resnet",
    "head/kernel": "num_classes",
    "head_distillation/kernel": "distillation",
    "pre_logits/kernel": "representation_size",
    "encoder_block_0/mlp/dense_0/kernel": "mlp_dim",
    "encoder_block_0/attention/query/kernel": "num_heads",
    "encoder_block_0/attention/query/bias": "qkv_bias",
    "encoder_block_0/attention_scale/gamma": "layer_scale",
    "pooled_norm/gamma": "norm_after_pooling",
    "pre_norm/gamma": "pre_norm",
    "attention_pooling/probe": "pooling",
    "register_tokens/token": "num_registers",
    "position_embedding/table": "position_embedding|position_grid",
}
POSITIONS = ["grid positions are not a square", "does not fit the checkpoint's", "has no position table"]


class Trap:
    """An object whose unpickling would write a file."""

    path = None  # set by the fixture

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.fixture(autouse=True)
def trap(tmp_path):
    Trap.path = tmp_path / "trap"
    yield
    assert not Trap.path.exists(), "reading the file ran code in it"


@dataclasses.dataclass
class Case:
    """A damaged checkpoint.

    Attributes:
        kind, base, key: The damage, the checkpoint, and the key that it hits.
        arrays: What the file holds then, or None where `content` tells its bytes.
        after: The array at the key then.
        other: The key that is there instead or besides.
        options: Arguments of `from_pretrained`, besides the base's.
        wanted: Patterns, of which the message has to match one.
    """

    kind: str
    base: checkpoints.Base
    key: str
    arrays: dict | None = None
    content: bytes | None = None
    after: np.ndarray | None = None
    other: str | None = None
    options: dict = dataclasses.field(default_factory=dict)
    wanted: tuple = ()

    @property
    def ours(self):
        return self.base.ours[self.key]

    @property
    def before(self):
        return self.base.arrays[self.key]

    def write(self, folder):
        if self.content is None:
            return self.base.write(folder, self.arrays)
        path = self.base.write(folder)
        path.write_bytes(self.content)
        return path


def listed(title, *names):
    """A pattern of a message whose list with that title has all the names."""
    return rf"does not fit the model\. .*{title}: " + "".join(
        rf"(?=([^;]*, )?{re.escape(name)}(,|;|$| ))" for name in names
    )


def changed(kind, base, key, after, **more):
    return Case(kind, base, key, {**base.arrays, key: after}, after=after, **more)


# The kinds of damage ------------------------------------------------------------------------------


def dropped(rng, base, key):
    arrays = {k: a for k, a in base.arrays.items() if k != key}
    return Case("dropped", base, key, arrays, wanted=(listed("only in the model", *base.ours[key]),))


def renamed(rng, base, key):
    folders, _, leaf = key.rpartition("/" if "/" in key else ".")
    others = [f"{key}_old", key[:-1], f"old/{key}", f"old.{key}", key.replace(leaf, leaf.title()), f" {key}"]
    others += [f"{prefix}{key}" for prefix in ("opt/target/", "params/", "img/", "module.", "vit.", "deit.")]
    others += [key.removeprefix(prefix) for prefix in ("params/", "vit.", "deit.")]
    others += [re.sub(r"(encoderblock_|layer\.|blocks\.)(?=\d)", r"\g<1>0", key)]  # blocks.00
    others += [re.sub(r"(kernel|weight)$", lambda m: {"kernel": "weight"}.get(m[0], "kernel"), key)]
    others = [other for other in others if other not in base.arrays]
    other = others[rng.integers(len(others))]
    arrays = {(other if k == key else k): a for k, a in base.arrays.items()}
    both = (
        listed("only in the file", other) + ".*" + listed("only in the model", *base.ours[key]).split(".*")[1]
    )
    return Case("renamed", base, key, arrays, other=other, wanted=(both,))


def duplicated(rng, base, key):
    torch = base.layout in ("timm", "huggingface")
    prefixes = ("module.", "vit.", "deit.", "model.") if torch else ("opt/target/", "params/", "img/", "old/")
    others = [prefix + key for prefix in prefixes]
    others += [key.removeprefix(prefix) for prefix in ("params/", "vit.", "deit.") if key.startswith(prefix)]
    other = others[rng.integers(len(others))]
    arrays = {**base.arrays, other: base.arrays[key]}
    both = rf"({re.escape(key)} and {re.escape(other)}|{re.escape(other)} and {re.escape(key)})"
    wanted = (
        listed("only in the file", other),
        rf": {both} both map to ",
        rf": the file holds {both}: two models",
    )
    return Case("duplicated", base, key, arrays, other=other, wanted=wanted)


def permuted(rng, base, key):
    array = base.arrays[key]
    ways = [way for way in _orders(array.ndim) if array.transpose(way).shape != array.shape]
    if ways:
        return changed("permuted", base, key, array.transpose(ways[rng.integers(len(ways))]))


def _orders(ndim):
    return [*itertools.permutations(range(ndim))]


def resized(rng, base, key):
    """Longer, shorter, twice as long, or empty along one axis."""
    array = base.arrays[key]
    axis, how = rng.integers(array.ndim), rng.integers(4)
    if how == 0:
        after = np.concatenate([array, array.take([0], axis)], axis)
    elif how == 1:
        after = np.delete(array, rng.integers(array.shape[axis]), axis)
    elif how == 2:
        after = np.concatenate([array, array], axis)
    else:
        after = array.take([], axis)
    return changed("resized", base, key, after)


def reranked(rng, base, key):
    """An axis more or less, none at all, or an axis of heads where there is none."""
    array = base.arrays[key]
    ways = [array.reshape(-1), array[np.newaxis], array[..., np.newaxis], array[(0,) * array.ndim]]
    for axis, size in enumerate(array.shape):
        if size % 3 == 0 and size > 3:
            ways += [
                array.reshape(*array.shape[:axis], *split, *array.shape[axis + 1 :])
                for split in ((3, size // 3), (size // 3, 3), (size // 8, 8))
                if math.prod(split) == size
            ]
    if 1 in array.shape:
        ways.append(array.squeeze(array.shape.index(1)))
    ways = [way for way in ways if way.ndim != array.ndim]
    return changed("reranked", base, key, np.array(ways[rng.integers(len(ways))]))


def byte_swapped(rng, base, key):
    if base.file.endswith(".npz") and base.arrays[key].dtype != ml_dtypes.bfloat16:
        after = base.arrays[key].astype(base.arrays[key].dtype.newbyteorder())
        said = rf": {re.escape(key)} holds '{re.escape(after.dtype.str)}'"
        return changed("byte_swapped", base, key, after, wanted=(said,))


def retyped(rng, base, key):
    array = base.arrays[key].astype("float32")
    kinds = ["int8", "int32", "int64", "uint8", "uint16", "bool"]
    if base.file.endswith(".npz"):
        kinds += ["complex64", "U3", "S3", "datetime64[s]", "V4", "V3", "longdouble", "object"]
    else:
        kinds += ["complex64"]
    kind = kinds[rng.integers(len(kinds))]
    if kind == "object":
        after = np.full(array.shape, Trap(), dtype=object)
        return changed("retyped", base, key, after, wanted=("it holds pickled objects, which are refused",))
    after = np.zeros(array.shape, kind)
    said = rf": {re.escape(key)} holds '[<>|=]?{re.escape(after.dtype.str[1:])}'"
    return changed("retyped", base, key, after, wanted=(said,))


def truncated(rng, base, key):
    content = _bytes(base)
    wanted = ("is no checkpoint that can be read: ",)
    return Case("truncated", base, key, content=content[: rng.integers(len(content))], wanted=wanted)


def damaged(rng, base, key):
    """Bytes of an entry of a zip file changed: of its header, its data, or its local header's name."""
    if not base.file.endswith(".npz"):
        return None
    content = bytearray(_bytes(base))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        info = archive.getinfo(f"{key}.npy")
    (name, extra) = struct.unpack_from("<HH", content, info.header_offset + 26)
    start = info.header_offset + 30 + name + extra
    first, last = [
        (start, start + 128),
        (start + 128, start + info.file_size),
        (start - extra - name, start - extra),
    ][rng.integers(3)]
    for place in rng.integers(first, last, size=rng.integers(1, 4)):
        content[place] ^= 1 << rng.integers(8)
    if content == _bytes(base):
        return None
    return Case("damaged", base, key, content=bytes(content), wanted=("is no checkpoint that can be read: ",))


def wrong_header(rng, base, key):
    """A safetensors header that is of another length, no JSON, or says what is not so."""
    if not base.file.endswith(".safetensors"):
        return None
    content = _bytes(base)
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    entry = header[key]
    start, end = entry["data_offsets"]
    how = rng.integers(10)
    wanted = ("is no checkpoint that can be read: ",)
    if how == 0:
        lengths = (0, 1, length - 1, length + 1, len(content), 2**40, 2**63, 2**64 - 1)
        wrong = lengths[rng.integers(len(lengths))]
        return Case("wrong_header", base, key, content=struct.pack("<Q", wrong) + content[8:], wanted=wanted)
    if how == 1:
        text = bytearray(content[8 : 8 + length])
        text[rng.integers(length)] = rng.choice([*b'{}"\\\x00\xff'])
        if text == content[8 : 8 + length]:
            return None
        wanted += ("",)  # a brace inside a key renames it
        return Case("wrong_header", base, key, content=content[:8] + text + data, wanted=wanted)
    if how == 2:
        entry["data_offsets"] = [start, end + int(rng.integers(1, 9))]
    elif how == 3:
        entry["data_offsets"] = [end, start]
    elif how == 4:
        entry["shape"] = [*entry["shape"], 2]
    elif how == 5:
        entry["shape"] = [2**40, *entry["shape"]]
    elif how == 6:
        entry["dtype"] = str(rng.choice(["F8", "F33", "", "F64"]))
    elif how == 7:
        del entry[["shape", "dtype", "data_offsets"][rng.integers(3)]]
    elif how == 8:
        header["__metadata__"] = {"format": 3}
    else:
        data = data[:-1] if rng.integers(2) else data + b"\x00"
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + data
    return Case("wrong_header", base, key, content=content, wanted=wanted)


def not_finite(rng, base, key):
    after = base.arrays[key].copy()
    after.reshape(-1)[rng.integers(after.size)] = rng.choice([np.nan, np.inf, -np.inf])
    wanted = (rf"holds NaN or infinity in {re.escape(key)};",)
    return changed("not_finite", base, key, after, options={"check_finite": True}, wanted=wanted)


KINDS = (dropped, renamed, duplicated, permuted, resized, reranked, byte_swapped, retyped, truncated, damaged)
KINDS += (wrong_header, not_finite)
_contents = {}


def _bytes(base):
    if base.name not in _contents:
        with tempfile.TemporaryDirectory() as folder:
            _contents[base.name] = base.write(pathlib.Path(folder)).read_bytes()
    return _contents[base.name]


# What to expect ------------------------------------------------------------------------------------


def another_checkpoint(case):
    """Why the damage leaves another valid checkpoint; None if it does not."""
    base, kind, ours = case.base, case.kind, case.ours[0]
    hybrid, told = "conv_root/kernel" in str(base.ours.values()), bool(base.beside)
    if kind == "dropped":
        apart = base.name in ("timm_registers_apart", "timm_deit3", "bigvision_token")
        if apart and ours in ("class_token/token", "register_tokens/token"):
            return "a model without this token, for which the table has no rows"
        if base.name == "timm_mu" and case.key == "blocks.0.attn.qkv.bias":
            return "a model without biases of query, key and value, if its only block has none"
    if (
        kind == "reranked"
        and re.search("_gn|gn_", ours)
        and case.after.ndim in (1, 4)
        and base.layout == "vit_jax"
    ):
        return "group norms have been stored as (channels,) and (1, 1, 1, channels)"
    if kind in ("permuted", "resized") and case.after.size and not told:
        before, after = case.before.shape, case.after.shape
        if len(before) == 4 and base.layout in ("timm", "huggingface"):
            before, after = (tuple(shape[axis] for axis in (2, 3, 1, 0)) for shape in (before, after))
        if ours == "patch_embedding/kernel" and before[3] == after[3]:
            divides = not 32 % after[0] and not 32 % after[1]
            if (not hybrid or before[2] == after[2]) and ("image_size" not in base.options or divides):
                return "another patch size or number of channels"
        if (
            ours == "conv_root/kernel"
            and kind == "resized"
            and before[:2] + before[3:] == after[:2] + after[3:]
        ):
            return "another number of channels"
        if (
            ours == "register_tokens/token"
            and after[::2] == before[::2]
            and base.name == "timm_registers_apart"
        ):
            return "another number of registers"
        if ours == "position_embedding/table" and after[::2] == before[::2]:
            prefix = sum(base.ours[k][0].endswith("_token/token") for k in base.arrays) + 4 * (
                "timm_registers" in base.name
            )
            apart = {"big_vision": [0], "timm": [prefix, 0]}.get(base.layout, [prefix])
            if any(
                after[1] - rows > 0 and math.isqrt(after[1] - rows) ** 2 == after[1] - rows for rows in apart
            ):
                return "another grid, or none of its rows for the tokens before the grid"
    return None


def wanted(case):
    """The patterns of which the message has to match one."""
    key, found = re.escape(case.key), [*case.wanted]
    scan = "/encoderblock/" in case.key
    if case.kind == "renamed" and another_checkpoint(dataclasses.replace(case, kind="dropped")):
        found.append(listed("only in the file", case.other))
    if case.kind in ("dropped", "renamed"):
        if case.key.endswith("norm1.bias"):
            found.append(rf": {re.escape(case.key.replace('bias', 'weight'))} has no bias")
        for ours in case.ours:
            found.append(rf"expected \d axes of the checkpoint's {ours}; got no such array")
            if ours in TOLD_OF or re.fullmatch(r"block\d_unit\d_conv1/kernel", ours):  # these tell the units
                found.append("only in the (file|model): (?!none)")
            if ours in TOLD_OF:
                found.append(rf"\.json says ({TOLD_OF[ours]})=")
            if re.search("^(position|class_token|register)", ours):
                found += POSITIONS
            if ours == "patch_embedding/kernel":
                found.append("in no known layout")
    if case.kind in ("renamed", "duplicated") and case.key.endswith("norm1.weight"):
        found.append(rf": {re.escape(case.other)} has no bias")
    if case.kind in ("permuted", "resized", "reranked"):
        found += [
            rf"wrong shape: (.*, )?{key} \(",
            rf": expected {key} to hold",
            rf": expected \d axes of {key}; ",
        ]
        for ours in case.ours:
            found.append(rf"expected \d axes of the checkpoint's {ours}; got \(")
            if ours in TOLD_OF:
                found += ["wrong shape: (?!none)", rf"\.json says ({TOLD_OF[ours]})="]
            if ours in ("patch_embedding/kernel", "encoder_block_0/mlp/dense_0/kernel"):
                found.append(
                    "the number of attention heads is unknown, because no named variant has the file's sizes"
                )
            if scan:  # of another depth than the other stacks
                found += ["only in the model: (?!none)", listed("only in the file", case.key)]
            if ours == "patch_embedding/kernel":
                found += POSITIONS
                found.append(
                    r"hidden_size \d+ is not divisible by num_heads [23]|is not divisible by the patch"
                )
            if ours == "conv_root/kernel":
                found.append("resnet_width must be a multiple of 32")
            if ours.startswith(("position", "register")):
                found += POSITIONS
            if ours == "encoder_block_0/mlp/dense_0/kernel" and case.after.size == 2 * case.before.size:
                found.append("a gated MLP")
    return found


def draw(number):
    """Case `number`."""
    rng = np.random.default_rng(number)
    while True:
        kind, name = KINDS[number % len(KINDS)], NAMES[rng.integers(len(NAMES))]
        keys = [*base(name).arrays]
        case = kind(rng, base(name), keys[rng.integers(len(keys))])
        if case and not another_checkpoint(case):
            return case


def load(case, folder, **options):
    return from_pretrained(case.write(folder), **{**case.base.options, **case.options, **options})


@pytest.mark.parametrize("number", range(N))
def test_a_damaged_checkpoint_is_refused(number, tmp_path):
    case = draw(number)
    with pytest.raises(ValueError) as caught:
        load(case, tmp_path)
    message = str(caught.value)
    about = f"{case.kind} {case.base.name} {case.key} {case.other or ''}: {message}"
    assert type(caught.value) is ValueError, about
    assert "\n" not in message and case.base.file in message, about
    assert any(re.search(pattern, message) for pattern in wanted(case)), about


# What random damage seldom hits --------------------------------------------------------------------


def refused(path, *patterns, **options):
    """Hold loading to one line that names the file and has all the patterns; the message."""
    with pytest.raises(ValueError) as caught:
        from_pretrained(path, **options)
    message = str(caught.value)
    assert type(caught.value) is ValueError and "\n" not in message and path.name in message, message
    for pattern in patterns:
        assert re.search(pattern, message), message
    return message


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_damage_is_drawn(kind):
    assert any(draw(number).kind == kind.__name__ for number in range(len(KINDS)))


def test_every_base_is_whole_and_every_layout_among_them(tmp_path):
    assert {base(name).layout for name in NAMES} == {"vit_jax", "big_vision", "timm", "huggingface"}
    for name in NAMES:
        (tmp_path / name).mkdir()
        from_pretrained(base(name).write(tmp_path / name), **base(name).options)


@pytest.mark.parametrize("name", ["token", "bigvision_map", "timm_token", "hf_alone", "hf_deit"])
def test_a_head_without_its_kernel_is_not_left_out(name, tmp_path):
    original = base(name)
    kernels = [key for key, ours in original.ours.items() if ours[0] == "head/kernel"]
    for kernel in kernels:
        path = original.write(tmp_path, {k: a for k, a in original.arrays.items() if k != kernel})
        bias = re.escape(kernel.replace("kernel", "bias").replace("weight", "bias"))
        refused(path, rf"only in the file: .*{bias}|\.json says num_classes=", **original.options)


def test_the_bias_of_a_distilled_head_alone_is_not_left_out(tmp_path):
    original = base("timm_token")
    path = original.write(tmp_path, {**original.arrays, "head_dist.bias": np.zeros(7, "float32")})
    refused(path, "only in the file: head_dist.bias;", **original.options)


ATTENTION = [
    ("timm_token", "blocks.0.attn.qkv.weight", (72, 3, 8)),
    ("timm_token", "blocks.1.attn.qkv.weight", (72, 3, 8)),
    ("timm_token", "blocks.1.attn.qkv.bias", (9, 8)),
    ("timm_token", "blocks.1.attn.proj.weight", (3, 8, 24)),
    ("timm_map", "attn_pool.kv.weight", (48, 3, 8)),
    ("timm_map", "attn_pool.proj.weight", (3, 8, 24)),
    ("timm_map", "attn_pool.q.bias", (3, 8)),
    ("hf_alone", "vit.encoder.layer.0.attention.attention.key.weight", (24, 3, 8)),
    ("hf_alone", "vit.encoder.layer.1.attention.attention.query.weight", (24, 3, 8)),
    ("hf_alone", "vit.encoder.layer.1.attention.attention.value.bias", (3, 8)),
    ("hf_alone", "vit.encoder.layer.0.attention.output.dense.weight", (3, 8, 24)),
]


@pytest.mark.parametrize("name, key, shape", ATTENTION)
def test_an_axis_of_heads_where_the_layout_has_none_is_of_the_wrong_shape(name, key, shape, tmp_path):
    original = base(name)
    path = original.write(tmp_path, {**original.arrays, key: original.arrays[key].reshape(shape)})
    refused(
        path,
        rf"wrong shape: {re.escape(key)} \(|expected \d axes of|expected {re.escape(key)} to hold",
        **original.options,
    )


PREFIXED = [
    ("timm_token", "module.", lambda key: True),
    ("hf_bare", "vit.", lambda key: True),
    ("hf_bare", "deit.", lambda key: True),
    ("token", "opt/target/", lambda key: True),
    ("token", "params/", lambda key: True),
]


@pytest.mark.parametrize("name, prefix, which", PREFIXED, ids=lambda x: x if isinstance(x, str) else "")
def test_one_key_outside_the_prefix_of_the_others_or_inside_it_alone_is_refused(
    name, prefix, which, tmp_path
):
    original = base(name)
    whole = {prefix + key: array for key, array in original.arrays.items()}
    from_pretrained(original.write(tmp_path, whole, {}), num_heads=3)
    for key in [*original.arrays][::9]:
        pattern = "|".join(
            [re.escape(key), *original.ours[key], "no known layout", "has no bias", *POSITIONS]
        )
        outside = {(k.removeprefix(prefix) if k == prefix + key else k): a for k, a in whole.items()}
        refused(
            original.write(tmp_path, outside, {}),
            pattern,
            num_heads=3,
        )
        inside = {(prefix + k if k == key else k): a for k, a in original.arrays.items()}
        refused(
            original.write(tmp_path, inside, {}),
            pattern,
            num_heads=3,
        )


@pytest.mark.parametrize("prefix", ["vit.", "deit."])
def test_a_classifier_under_the_prefix_of_the_encoder_is_refused(prefix, tmp_path):
    original = base("hf_deit" if prefix == "deit." else "hf_vit")
    for key in [key for key in original.arrays if "classifier" in key]:
        moved = {(prefix + k if k == key else k): a for k, a in original.arrays.items()}
        pattern = (
            rf"only in the file: {re.escape(prefix + key)};|config\.json says (num_classes|distillation)="
        )
        refused(original.write(tmp_path, moved), pattern)


TWICE = [
    ("token", "Transformer/encoderblock_0/LayerNorm_2/bias", "Transformer/encoderblock_0/LayerNorm_1/bias"),
    (
        "token",
        "Transformer/encoderblock_1/MlpBlock_3/Dense_0/bias",
        "Transformer/encoderblock_1/MlpBlock_0/Dense_0/bias",
    ),
    ("bigvision_map", "params/MAPHead_0/probe", "params/probe"),
    ("bigvision_map", "params/pos_embedding", "params/Transformer/pos_embedding"),
    (
        "bigvision_scan",
        "params/Transformer/encoderblock/LayerNorm_0/scale",
        "params/Transformer/encoderblock_0/LayerNorm_0/scale",
    ),
    ("timm_deit3", "blocks.0.ls1.gamma", "blocks.0.gamma_1"),
    ("timm_hybrid_root", "patch_embed.backbone.norm.weight", "patch_embed.backbone.stem.norm.weight"),
    ("hf_vit", "classifier.bias", "cls_classifier.bias"),
    ("hf_vit", "vit.encoder.layer.0.intermediate.dense.bias", "vit.layers.0.mlp.fc1.bias"),
]


@pytest.mark.parametrize("name, key, other", TWICE)
def test_an_array_under_two_names_of_its_layout_is_refused(name, key, other, tmp_path):
    original = base(name)
    array = original.arrays[key]
    array = array[0] if "/encoderblock/" in key else array
    path = original.write(tmp_path, {**original.arrays, other: array + 1})
    keys = rf"({re.escape(key)} and {re.escape(other)}|{re.escape(other)} and {re.escape(key)})"
    refused(path, rf": {keys} both map to |{keys}", **original.options)


@pytest.mark.parametrize(
    "array",
    [np.float32(0), np.zeros((0, 3), "float32"), np.zeros((2, 3), "float32")],
    ids=["0-d", "empty", "2-d"],
)
def test_an_unknown_stack_of_a_scanned_file_is_listed(array, tmp_path):
    original, key = base("bigvision_scan"), "params/Transformer/encoderblock/gate"
    path = original.write(tmp_path, {**original.arrays, key: array})
    refused(path, f"only in the file: {key};|expected {key} to hold")


@pytest.mark.parametrize("depth", [1, 3])
def test_stacks_of_two_depths_are_refused(depth, tmp_path):
    original, key = base("bigvision_scan"), "params/Transformer/encoderblock/LayerNorm_0/bias"
    path = original.write(tmp_path, {**original.arrays, key: np.zeros((depth, 24), "float32")})
    refused(path, f"only in the model: encoder_block_|only in the file: {key};")


@pytest.fixture
def unbuilt(monkeypatch):
    """A large model in whose place the test fails: what is to be refused before it is built."""

    def build(**arguments):
        if (arguments["num_layers"] or 0) > 3 or sum(arguments.get("resnet") or ()) > 9:
            pytest.fail("a model of far more blocks than the file holds is built")
        return VisionTransformer(**arguments)

    monkeypatch.setattr("keras_vit.weights.load.VisionTransformer", build)


@pytest.mark.parametrize("number", [10**5, 10**30])
@pytest.mark.parametrize(
    "name, key",
    [
        ("timm_token", "blocks.{}.norm2.bias"),
        ("hf_alone", "vit.encoder.layer.{}.layernorm_after.bias"),
        ("token", "Transformer/encoderblock_{}/LayerNorm_0/bias"),
        ("bigvision_map", "params/Transformer/encoderblock_{}/LayerNorm_0/bias"),
    ],
)
def test_a_block_of_an_absurd_number_is_refused_before_so_many_are_built(
    name, key, number, tmp_path, unbuilt
):
    original = base(name)
    path = original.write(
        tmp_path, {(key.format(number) if k == key.format(1) else k): a for k, a in original.arrays.items()}
    )
    refused(path, str(number), **original.options)


def test_a_stack_with_its_axes_permuted_is_refused_before_so_many_blocks_are_built(tmp_path, unbuilt):
    original, key = base("bigvision_scan"), "params/Transformer/encoderblock/MlpBlock_0/Dense_0/bias"
    path = original.write(tmp_path, {**original.arrays, key: np.zeros((3072, 2), "float32")})
    refused(path, re.escape(key))


@pytest.mark.parametrize(
    "name, key", [("hybrid", "block{}/unit1/conv1/kernel"), ("hybrid", "block1/unit{}/conv1/kernel")]
)
def test_a_unit_of_an_absurd_number_is_refused_before_so_many_are_built(name, key, tmp_path, unbuilt):
    original = base(name)
    moved = {(key.format(10**5) if k == key.format(1) else k): a for k, a in original.arrays.items()}
    refused(original.write(tmp_path, moved), r"only in the file: .* and \d+ more")


@pytest.mark.parametrize("name", ["token", "hf_vit", "timm_token"])
@pytest.mark.parametrize("key", ["cls\r\nblocks", "a\x1b[31m", "\u2028"])
def test_a_key_with_a_line_break_does_not_break_the_line(name, key, tmp_path):
    original = base(name)
    for array in (np.zeros(3, "float32"), np.zeros(3, "int32")):
        path = original.write(tmp_path, {**original.arrays, key: array})
        message = refused(path, **original.options)
        assert len(message.splitlines()) == 1 and message.isprintable(), repr(message)


@pytest.mark.parametrize("name", ["timm_token", "bigvision_map", "hf_vit"])
def test_an_mlp_with_permuted_axes_is_not_taken_for_a_gated_one(name, tmp_path):
    """Its width is twice the model's, so that the axes of the second kernel look halved when permuted."""
    original = base(name)
    (key,) = [key for key, ours in original.ours.items() if ours[0] == "encoder_block_0/mlp/dense_1/kernel"]
    path = original.write(tmp_path, {**original.arrays, key: original.arrays[key].T})
    refused(path, rf"wrong shape: {re.escape(key)} \(", **original.options)


@pytest.mark.parametrize(
    "shape", [(2, 17, 24), (1, 17, 25), (1, 17, 23), (17, 1, 24), (1, 17), (1, 17, 24, 1), (1, 18, 24)]
)
@pytest.mark.parametrize(
    "options", [{"image_size": 48}, {"image_size": (None, None)}, {"pooling": "gap"}], ids=str
)
def test_a_table_of_the_wrong_shape_is_refused_where_it_would_be_resized(shape, options, tmp_path):
    original = base("token")
    key = "Transformer/posembed_input/pos_embedding"
    path = original.write(tmp_path, {**original.arrays, key: np.zeros(shape, "float32")})
    refused(
        path, rf"wrong shape: {key} \(|expected 3 axes of .*table|grid positions are not a square", **options
    )


@pytest.mark.parametrize("shape", [(8, 8, 3, 25), (8, 8, 3, 23), (8, 8, 0, 24), (0, 8, 3, 24), (8, 8, 3)])
@pytest.mark.parametrize("options", [{"patch_size": 4}, {"in_channels": 1}, {"in_channels": 5}], ids=str)
def test_a_patch_kernel_of_the_wrong_shape_is_refused_where_it_would_be_resized(shape, options, tmp_path):
    original = base("token")
    path = original.write(tmp_path, {**original.arrays, "embedding/kernel": np.zeros(shape, "float32")})
    refused(path, "kernel|hidden_size|patch_size|in_channels", **options)


@pytest.mark.parametrize("name", ["token_told", "hf_vit", "timm_told"])
def test_an_empty_patch_is_refused_where_the_image_size_is_told(name, tmp_path):
    original = base(name)
    (key,) = [key for key, ours in original.ours.items() if ours[0] == "patch_embedding/kernel"]
    for axis in range(4):
        path = original.write(tmp_path, {**original.arrays, key: original.arrays[key].take([], axis)})
        refused(path, **original.options)


# Bytes ---------------------------------------------------------------------------------------------


def first_header(content, size=200):
    """Places of the first entry's name and array header in an .npz."""
    return range(30, 30 + size)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_no_byte_of_the_header_of_a_large_entry_can_be_changed(save, tmp_path):
    """An entry of more than 4096 bytes is read in pieces; its checksum counts only once all are read."""
    stored = {"pos": np.random.default_rng(0).normal(size=(1, 17, 96)).astype("float32")}
    save(tmp_path / "whole.npz", **stored)
    content, path = (tmp_path / "whole.npz").read_bytes(), tmp_path / "damaged.npz"
    wrong = []
    for place in range(30, 230, 1 if "FULL" in os.environ else 2):
        for value in {content[place] ^ 1 << bit for bit in range(8)} | {*b"0128()L\\'\x00{}"}:
            damage = bytearray(content)
            damage[place] = value
            path.write_bytes(damage)
            try:
                found = read_arrays(path)
            except ValueError as error:
                if type(error) is not ValueError or "\n" in str(error) or "damaged.npz" not in str(error):
                    wrong.append((place, value, error))
            except (Exception, Warning) as error:
                wrong.append((place, value, error))
            else:
                if not all(k == "pos" and a.tobytes() == stored[k].tobytes() for k, a in found.items()):
                    wrong.append((place, value, found))
    assert not wrong, f"{len(wrong)} changed bytes are not refused, as {wrong[0]}"


@pytest.mark.parametrize("shape, other", [("(1, 17, 24)", "(1, 10, 24)"), ("<f4", "<f2")])
def test_an_entry_that_says_less_than_it_holds_is_refused(shape, other, tmp_path):
    """One byte, which zip's checksum shows; what is said would make a model."""
    stored = {**base("token_mu").arrays}
    key = "Transformer/posembed_input/pos_embedding"
    stored[key] = np.random.default_rng(0).normal(size=(1, 50, 32)).astype("float32")  # 7×7 cells
    path = base("token_mu").write(tmp_path, stored)
    content = path.read_bytes()
    start = content.index(key.encode())
    old, new = {"(1, 17, 24)": (b"(1, 50, 32)", b"(1, 10, 32)"), "<f4": (b"<f4", b"<f2")}[shape]
    place = content.index(old, start)
    path.write_bytes(content[:place] + new + content[place + len(old) :])
    refused(path, "is no checkpoint that can be read: ")


def npz_of(path, header, data=bytes(400)):
    """An .npz of one array `embedding/kernel` with that header, and checksums that fit."""
    header = header.encode() + b"\n"
    raw = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("embedding/kernel.npy", raw)
    return path


HEADERS = {
    "negative": ("'<f4'", "(-1,)"),
    "too large": ("'<f4'", "(9223372036854775807, 3)"),
    "too large for C": ("'<f4'", f"({'9' * 60},)"),
    "terabytes": ("'<f4'", "(1000000000000,)"),
    "Python 2": ("'<f4'", "(3L,)"),
    "text": ("'<f4'", "'abc'"),
    "truth": ("'<f4'", "(True,)"),
    "structure": ("[('a','<f4')]", "(3,)"),
    "subarray": ("('<f4',(2,))", "(3,)"),
    "nothing": ("None", "(3,)"),
    "brackets": ("'<f4'", "(" * 300),
    "one bracket": ("'<f4'", "(3,"),
    "escape": ("'<f4\\d'", "(3,)"),
    "shorter than the entry": ("'<f4'", "(3,)"),
    "no size": ("'|V0'", "(3,)"),
}


@pytest.mark.parametrize("descr, shape", HEADERS.values(), ids=HEADERS)
def test_an_array_header_that_cannot_be_is_refused(descr, shape, tmp_path):
    path = npz_of(tmp_path / "odd.npz", f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}")
    refused(path, "odd.npz is no checkpoint")


@pytest.mark.parametrize("header", ["{[]: 1}", "3", "{}", "{'descr', 'shape'}", "x" * 20000, ""])
def test_an_array_header_that_is_none_is_refused(header, tmp_path):
    refused(npz_of(tmp_path / "odd.npz", header), "odd.npz is no checkpoint that can be read: ")


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
@pytest.mark.parametrize("start", [80, 3000])
def test_a_damaged_entry_is_refused_however_it_is_packed(method, start, tmp_path):
    path, buffer = tmp_path / "packed.npz", io.BytesIO()
    np.save(buffer, np.random.default_rng(0).normal(size=(40, 100)))
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("embedding/kernel.npy", buffer.getvalue())
    content = bytearray(path.read_bytes())
    content[start : start + 50] = bytes(50)
    path.write_bytes(content)
    refused(path, "packed.npz is no checkpoint that can be read: ")


@pytest.mark.parametrize("method", [1, 14, 93, 99])
def test_an_entry_that_says_it_is_packed_otherwise_is_refused(method, tmp_path):
    path = base("token").write(tmp_path)
    content = bytearray(path.read_bytes())
    for signature, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        struct.pack_into("<H", content, content.index(signature) + place, method)
    path.write_bytes(content)
    refused(path, "is no checkpoint that can be read: ")


@pytest.mark.parametrize("names", [("cls.npy", "cls"), ("cls", "cls.npy"), ("cls.npy", "cls.npy")])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_entries_of_one_name_are_refused(names, tmp_path):
    original, path = base("token"), tmp_path / "token.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in [*original.arrays.items(), ("", None), ("", None)]:
            buffer = io.BytesIO()
            if array is None:
                np.save(buffer, np.full((1, 1, 24), len(names), "float32"))
                archive.writestr(names[0], buffer.getvalue())
                names = names[1:]
            elif name != "cls":
                np.save(buffer, array)
                archive.writestr(f"{name}.npy", buffer.getvalue())
    refused(path, "cls|two of its entries have the same name")


@pytest.mark.parametrize(
    "kind", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "I16", "U64", "BOOL", "C64"]
)
def test_a_type_that_is_none_of_ours_is_refused(kind, tmp_path):
    bits = {"F4": 4, "F6_E2M3": 6, "I16": 16, "U64": 64, "C64": 64}.get(kind, 8)
    header = {"cls_token": {"dtype": kind, "shape": [4], "data_offsets": [0, bits // 2]}}
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(bits // 2))
    refused(path, "model.safetensors is no checkpoint")


# What leaves another valid checkpoint --------------------------------------------------------------

QKV_BIAS = re.compile(r".*/attention/(query|key|value)/bias")


def without(pattern):
    """The change of taking out all keys of which one of our names matches."""

    def change(base):
        return {
            k: a for k, a in base.arrays.items() if not any(re.fullmatch(pattern, o) for o in base.ours[k])
        }

    return change


def with_array(ours, change_array):
    """The change of one array."""

    def change(base):
        return {k: change_array(a) if ours in base.ours[k] else a for k, a in base.arrays.items()}

    return change


def exchanged(first, second):
    """The change of giving two keys each other's arrays."""

    def change(base):
        keys = {ours[0]: key for key, ours in base.ours.items()}
        other = {keys[first]: keys[second], keys[second]: keys[first]}
        return {key: base.arrays[other.get(key, key)] for key in base.arrays}

    return change


OUT = "encoder_block_0/attention/out/kernel"


def cut(ours):
    """The change of taking the third channel of an image from a kernel."""
    return with_array(ours, lambda a: a[:, :, :2])


# reason → (base, the change, what has to be told for it to load, who tells that it is another one)
# Who may tell: "json" NAME.json, "config" config.json, "variant", "catalogue"; a sha256 always does.
ALL = ("json", "variant", "catalogue")
ANOTHER = {
    "a model without a head": ("timm_token", without("head/.*"), {}, ("json", "config", "catalogue")),
    "a model without a head, official": ("token", without("head/.*"), {}, ("json", "catalogue")),
    "a ViTModel": ("hf_alone", without("head/.*"), {}, ("json", "config")),
    "no pre_logits where the head fits": (
        "bigvision_gap_sincos",
        without("pre_logits/.*"),
        {},
        ("json",),
    ),
    "a ViTModel without its pooler": ("hf_bare", without("pre_logits/.*"), HEADS, ()),
    "one block less": ("timm_token", without("encoder_block_1/.*"), {}, ALL),
    "one block less, official": ("token", without("encoder_block_1/.*"), {}, ALL),
    "one block less in each stack": (
        "bigvision_scan",
        lambda base: {k: a[:1] if "/encoderblock/" in k else a for k, a in base.arrays.items()},
        {},
        ALL,
    ),
    "one unit less": ("hybrid", without("block2_unit2_.*"), {}, ("json",)),
    "no class token, for which the table has no row": (
        "timm_deit3",
        without("class_token/token"),
        {},
        ("json", "config"),
    ),
    "no class token, in big_vision": ("bigvision_token", without("class_token/token"), {}, ("json",)),
    "no registers, for which the table has no rows": (
        "timm_registers_apart",
        without("register_tokens/token"),
        {},
        ("json",),
    ),
    "fewer registers, for which the table has no rows": (
        "timm_registers_apart",
        with_array("register_tokens/token", lambda a: a[:, 1:]),
        {},
        ("json",),
    ),
    "fixed positions": ("bigvision_token", without("position_.*"), {"image_size": 32}, ("json",)),
    "fixed positions, for an official file without a class token": (
        "gap",
        without("position_.*"),
        {"image_size": 32},
        ("json",),
    ),
    "no qkv biases": ("timm_token", without(QKV_BIAS), {}, ("json",)),
    "no qkv biases, in the only block": ("timm_mu", without(QKV_BIAS), {}, ("json",)),
    "no qkv biases, in transformers": (
        "hf_alone",
        without(QKV_BIAS),
        {},
        ("json", "config"),
    ),
    "no qkv biases, in big_vision": ("bigvision_token", without(QKV_BIAS), {}, ("json",)),
    "no LayerScale": ("timm_deit3", without(".*_scale/gamma"), {}, ("json",)),
    "another pooling": ("bigvision_map", without("attention_pooling/.*"), {}, ("json",)),
    "another pooling, in timm": ("timm_map", without("attention_pooling/.*"), {}, ("json", "config")),
    "a token that no head reads": ("hf_deit", without("head_distillation/.*"), HEADS, ("json", "config")),
    "another patch size": ("timm_mu", with_array("patch_embedding/kernel", lambda a: a[:, :, :8]), {}, ALL),
    "patches of other axes": (
        "token",
        with_array("patch_embedding/kernel", lambda a: a.transpose(2, 0, 1, 3)),
        {},
        ALL,
    ),
    "other channels": (
        "token",
        cut("patch_embedding/kernel"),
        {},
        ("json", "catalogue"),
    ),
    "channels of a stem": (
        "hybrid",
        cut("conv_root/kernel"),
        {},
        ("json",),
    ),
    "another grid": (
        "timm_token",
        with_array("position_embedding/table", lambda a: a[:, :10]),
        {},
        ("json", "config", "catalogue"),
    ),
    "positions without a row for the class token": (
        "timm_token",
        with_array("position_embedding/table", lambda a: a[:, 1:]),
        {},
        ("json",),
    ),
    "positions with a row for the class token": (
        "timm_deit3",
        with_array("position_embedding/table", lambda a: np.concatenate([a[:, :1], a], 1)),
        {},
        ("json",),
    ),
    "equal axes permuted": (
        "timm_token",
        with_array(OUT, np.transpose),
        {},
        (),
    ),
    "equal axes of the patches permuted": (
        "token",
        with_array("patch_embedding/kernel", lambda a: a.transpose(1, 0, 2, 3)),
        {},
        (),
    ),
    "equal shapes exchanged": (
        "token",
        exchanged("encoder_block_0/mlp_norm/gamma", "encoder_block_1/mlp_norm/beta"),
        {},
        (),
    ),
    "other values": ("hf_alone", with_array("head/bias", lambda a: a + 1), {}, ()),
    "another type": ("hf_alone", with_array("head/bias", lambda a: a.astype("float16")), {}, ()),
    "group norms as (1, 1, 1, channels) or (channels,)": (
        "hybrid",
        with_array("gn_root/gamma", lambda a: a.reshape(-1)),
        {},
        (),
    ),
}
TOLD = [(reason, teller) for reason, (*_, tellers) in ANOTHER.items() for teller in ("sha256", *tellers)]
TIMM_CONFIG = {"architecture": "vit_tiny_patch8_32", "num_classes": 7}


@pytest.mark.parametrize("reason", some(ANOTHER, 2))
def test_what_leaves_another_checkpoint_loads_as_that(reason, tmp_path):
    name, change, told, _ = ANOTHER[reason]
    path = base(name).write(tmp_path, change(base(name)), beside={})
    model = from_pretrained(path, **{**base(name).options, **told})
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


@pytest.fixture
def tell(tmp_path, monkeypatch):
    """A function that lets one more tell of a base's model: the arguments of `from_pretrained` for it."""
    monkeypatch.setitem(variants.VARIANTS, "tiny", (24, 2, 40, 3))
    monkeypatch.setitem(variants.VARIANTS, "small", (24, 2, 48, 3))
    yield lambda teller, original, path: TELLERS[teller](original, path, monkeypatch)
    catalogue._by_source.cache_clear()


def _json(original, path, monkeypatch):
    model = from_pretrained(path, **original.options)
    path.with_suffix(".json").write_text(sidecar_text(model.get_config(), original.layout))
    return {}


def _config(original, path, monkeypatch):
    model = from_pretrained(path, **original.options)
    if original.layout == "huggingface":
        config, preprocessor = LAYOUTS["huggingface"].write_config(model.get_config())
        path.with_name("preprocessor_config.json").write_text(preprocessor)
    else:
        pooling = {"gap": "avg"}.get(model.pooling, model.pooling)
        pretrained = {"input_size": [3, *model.image_size], "mean": [0.5] * 3, "std": [0.5] * 3}
        config = json.dumps({**TIMM_CONFIG, "global_pool": pooling, "pretrained_cfg": pretrained})
    path.rename(path.with_name("model.safetensors"))
    path.with_name("config.json").write_text(config)
    return {}


def _variant(original, path, monkeypatch):
    return {"variant": named(original)}


def named(original):
    """The name of the variant with the base's sizes."""
    if original.name.endswith("_mu"):
        return "mu/16"
    return "small/8" if original.name.startswith(("timm_token", "bigvision_map")) else "tiny/8"


def _catalogue(original, path, monkeypatch):
    model = from_pretrained(path, **original.options)
    row = catalogue.Checkpoint(
        name="a_model_of_ours",
        source=str(path),
        variant=named(original),
        image_size=model.image_size,
        num_classes=model.num_classes,
        options={},
        preprocessing={"mean": (0.5,) * 3, "std": (0.5,) * 3},
        class_names=None,
        pretrained_on="nothing",
        **dict.fromkeys(("licence", "licence_source", "top1", "top1_source", "sha256", "bytes")),
    )
    monkeypatch.setitem(catalogue.CATALOGUE, row.name, row)
    catalogue._by_source.cache_clear()
    return {"source": row.name}


def _sha256(original, path, monkeypatch):
    return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


TELLERS = {
    "json": _json,
    "config": _config,
    "variant": _variant,
    "catalogue": _catalogue,
    "sha256": _sha256,
}
SAID = {
    "json": r"\.json says|does not fit the model|does not fit the checkpoint's",
    "config": r"config\.json says|does not fit the model|does not fit the checkpoint's",
    "variant": "variant (tiny/8|small/8|mu/16) says|does not fit the checkpoint's",
    "catalogue": "the catalogue's a_model_of_ours says|does not fit the checkpoint's",
    "sha256": "(?i)sha-?256",
}


@pytest.mark.parametrize("reason, teller", some(TOLD, 5))
def test_another_checkpoint_is_refused_where_it_is_told_which_it_should_be(reason, teller, tmp_path, tell):
    name, change, told, _ = ANOTHER[reason]
    original = base(name)
    path = original.write(tmp_path, beside={})
    options = {**original.options, **told, **tell(teller, original, path)}
    source = options.pop("source", None)
    path = path if path.exists() else path.with_name("model.safetensors")
    from_pretrained(source or path, **options)  # the whole one agrees
    write_file(change(original), path)
    with pytest.raises(ValueError) as caught:
        from_pretrained(source or path, **options)
    message = str(caught.value)
    assert path.name in message and "\n" not in message, message
    assert re.search(SAID[teller], message), message


def test_a_catalogue_name_tells_that_there_are_positions(tmp_path, tell):
    """It tells the image size, without which no positions would be missed."""
    for name in ("token", "timm_token", "gap"):
        original = base(name)
        path = original.write(tmp_path)
        source = tell("catalogue", original, path)["source"]
        from_pretrained(source, **original.options)
        write_file(without("position_.*")(original), path)
        with pytest.raises(ValueError, match="position"):
            from_pretrained(source, **original.options)
