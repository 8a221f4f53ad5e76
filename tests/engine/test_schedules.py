import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_vit.training import WarmupDecay


def official(step, base, total, warmup, decay):
    """`create_learning_rate_schedule`, from its formulas."""
    progress = min(max((step - warmup) / (total - warmup), 0.0), 1.0)
    if decay == "cosine":
        rate = base * 0.5 * (1 + math.cos(math.pi * progress))
    else:
        rate = 1e-5 + (base - 1e-5) * (1 - progress)
    return rate * min(1.0, step / warmup) if warmup else rate


@given(
    total=st.integers(2, 20_000),
    fraction=st.floats(0, 0.99),
    base=st.floats(1e-4, 1.0),
    at=st.floats(0, 1.2),
    decay=st.sampled_from(["cosine", "linear"]),
)
def test_the_rate_is_the_official_one_at_every_step(total, fraction, base, at, decay):
    warmup, step = int(fraction * total), int(at * total)
    rate = float(WarmupDecay(base, total, warmup, decay)(step))
    assert rate == pytest.approx(official(step, base, total, warmup, decay), rel=1e-4, abs=1e-7 * base)


def test_a_linear_decay_does_not_rise():
    schedule = WarmupDecay(1e-6, 10, decay="linear")
    assert [float(schedule(step)) for step in range(11)] == pytest.approx([1e-6] * 11)


def test_a_negative_warm_up_is_refused():
    with pytest.raises(ValueError, match="warmup_steps must be at least 0 .* got -1 and 10"):
        WarmupDecay(0.1, 10, warmup_steps=-1)
