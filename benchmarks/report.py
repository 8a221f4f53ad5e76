"""RESULTS.json, in which runs of the benchmark of speed are kept, as RESULTS.md and figures."""

import json
import math
import os
import statistics

from contenders import CONTENDERS

OURS = "keras_vit"  # what a user gets who sets nothing
MARGIN = 1.15  # float32, against the best peer
INT8 = 4  # times the SavedModel's speed, of LiteRT's dynamic int8
GROWTH = 0.7  # GFLOP/s of the largest image, of those of the smallest
LINEAR = 1.5  # how much steeper memory may grow with tokens in the upper half; quadratic growth is at 4
LARGEST, SMALLEST = "1024", "224"
INTRODUCTION = """\
`make benchmark` measures and writes this page. `benchmarks/speed.py` and `benchmarks/growth.py` can do
single cases of it; the numbers of the others stay. Only what one table holds was measured side by side, in
interleaved rounds of a process for each contender: between tables the machine may have been another, or
busier. The weights and images are random, with 1000 classes.

* `keras_vit` is what a user gets who sets nothing: `predict_on_batch`, and in training the step that `fit`
  runs. `graph` and `XLA` are `tf.function` without and with `jit_compile`, `compiled` is `torch.compile`. A
  training step clips at a global norm of 1 and uses SGD with momentum, which this package's recipe keeps in
  bfloat16.
* bfloat16 means bfloat16 weights in inference, and float32 weights in training (`mixed_bfloat16`,
  `torch.autocast`). Exported formats compute in float32, but for `dynamic int8`.
* ratio: the best peer's time ÷ the contender's, so that above 1 is faster. Of the ceiling: the model's FLOPs
  (of three forward passes in training) ÷ what the fastest library makes of products of large matrices in
  that precision. Peak: of resident memory once the model is built, or of the accelerator's. First: the
  seconds of the first step, which compiles.

[PROFILE.md](PROFILE.md) tells where the time goes and what bounds it."""
LARGER = """\
One image at a time; the paper's figure 12. GFLOP/s, which count attention's part that is quadratic in the
tokens, are relative to the same contender's at 224 px. Memory is the steps' peak above the built model's."""


def update(path, section, found):
    """Put entries into a section of the JSON file, in the place of older ones of the same names."""
    results = json.loads(path.read_text()) if path.exists() else {}
    results.setdefault(section, {}).update(found)
    _write(path, json.dumps(results, indent=1) + "\n")


def write_report(folder):
    """Write RESULTS.md and the figures anew from RESULTS.json; the text."""
    results = json.loads((folder / "RESULTS.json").read_text())
    text = report(results)
    _write(folder / "RESULTS.md", text)
    if results.get("cases"):
        _draw(_bars, results["cases"], folder / "RESULTS.png")
    if results.get("growth"):
        _draw(_curves, results["growth"], folder / "GROWTH.png")
    return text


def _write(path, text):
    beside = path.with_name(f".{path.name}")
    beside.write_text(text)
    os.replace(beside, path)


# Numbers ----------------------------------------------------------------------------------------


def rows(found):
    """name → the numbers of each contender of a case that was measured.

    Args:
        found: A case of RESULTS.json.

    Returns:
        name → dict of `ms` and `rate` of an image, `ratio` (of the best peer's time to its own), `share`
        (of the ceiling), `peak` (MiB) and `first` (seconds); None for what is not known.
    """
    medians = {name: statistics.median(c["seconds"]) for name, c in found["contenders"].items() if _done(c)}
    best = min((s for name, s in medians.items() if CONTENDERS[name].peer), default=None)
    ceiling = (found["ceiling"] or {}).get(found["precision"])
    made = {}
    for name, seconds in medians.items():
        rate = found["batch"] / seconds
        memory = found["contenders"][name]["memory"]
        made[name] = {
            "ms": 1e3 / rate,
            "rate": rate,
            "ratio": best and best / seconds,
            "share": None if "int8" in name else ceiling and rate * found["gflops"] / ceiling["gflops"],
            "peak": memory["device"] or max(memory["warming"], memory["running"]),
            "first": found["contenders"][name]["first"],
        }
    return made


def grown(found):
    """name → size → numbers of each contender's images of growing size.

    Returns:
        name → size (a string) → dict of `ms`, `speed` (GFLOP/s of those at 224 px) and `memory` (MiB above
        those of the model, once it runs).
    """
    made = {}
    for name, sizes in found["contenders"].items():
        done = {size: c for size, c in sizes.items() if _done(c)}
        flops = {s: found["sizes"][s]["gflops"] / statistics.median(c["seconds"]) for s, c in done.items()}
        made[name] = {
            size: {
                "ms": statistics.median(c["seconds"]) * 1e3,
                "speed": flops[size] / flops[SMALLEST] if SMALLEST in flops else None,
                "memory": (c["memory"]["device"] or c["memory"]["running"]) - c["memory"]["built"],
            }
            for size, c in done.items()
        }
    return made


def steepening(found, numbers):
    """Memory a token takes in the upper half of the sizes ÷ in the lower; None if it is unknown."""
    sizes = sorted(numbers, key=int)
    if len(sizes) < 3:
        return None
    low, middle, high = sizes[0], sizes[-2], sizes[-1]

    def slope(a, b):
        tokens = [found["sizes"][size]["tokens"] for size in (a, b)]
        return (numbers[b]["memory"] - numbers[a]["memory"]) / (tokens[1] - tokens[0])

    below = slope(low, middle)
    return slope(middle, high) / below if below > 0 else math.inf


def targets(results):
    """(what, what is wanted, what was measured, whether that meets it), where there are numbers."""
    found = []
    for case, numbers in results.get("cases", {}).items():
        made = rows(numbers)
        rate = {name: row["rate"] for name, row in made.items()}
        low = numbers["precision"] == "bfloat16"
        peers = {name: r for name, r in rate.items() if CONTENDERS[name].peer}
        if peers and OURS in rate:
            best = max(peers, key=peers.get)
            wanted = 1 if low else MARGIN
            found.append((case, f"{wanted} × {best}", rate[OURS] / peers[best], wanted))
        int8, saved = (rate.get(f"{OURS} {name}") for name in ("LiteRT dynamic int8", "SavedModel"))
        if int8 and saved and numbers["batch"] == 1:
            found.append((f"{case}: LiteRT dynamic int8", f"{INT8} × SavedModel", int8 / saved, INT8))
    rated = [(what, wanted, f"{value:.2f}", value >= bound) for what, wanted, value, bound in found]
    for case, numbers in results.get("growth", {}).items():
        made = grown(numbers).get(OURS, {})
        if LARGEST in made and made[LARGEST]["speed"]:
            speed, steeper = made[LARGEST]["speed"], steepening(numbers, made)
            what = f"{case}: GFLOP/s at {LARGEST} px"
            rated.append((what, f"{GROWTH} × at {SMALLEST} px", f"{speed:.2f}", speed >= GROWTH))
            if steeper is not None:
                wanted = f"not over {LINEAR} × steeper from 512 px on"
                rated.append((f"{case}: memory a token", wanted, f"{steeper:.2f}", steeper <= LINEAR))
    return rated


def _done(contender):
    return bool(contender.get("seconds")) and "memory" in contender


# The text ---------------------------------------------------------------------------------------


def report(results):
    """The whole of RESULTS.md."""
    parts = [
        "# Speed",
        INTRODUCTION,
        _runs(results),
        "## Targets",
        table(
            ("what", "wanted", "measured", ""),
            [(*row, "met" if met else "**missed**") for *row, met in targets(results)],
        ),
    ]
    cases = results.get("cases", {})
    if cases:
        parts += ["![images a second, relative to the best peer](RESULTS.png)"]
    for case, found in cases.items():
        parts += [f"## {case}", _when(found), _case_table(found)]
        parts += _absences(found)
    if results.get("growth"):
        parts += [
            "# Larger images",
            LARGER,
            "![time and memory by image size](GROWTH.png)",
        ]
    for case, found in results.get("growth", {}).items():
        parts += [f"## {case}", _when(found), _growth_table(found)]
        parts += _absences({"contenders": _flat(found)})
    for name, found in results.get("starts", {}).items():
        parts += [
            f"# {name.capitalize()}",
            _when(found),
            table(
                ("what", "s", "lowest to highest"),
                [
                    (what, f"{statistics.median(s):.2f}", f"{min(s):.2f} to {max(s):.2f}")
                    for what, s in found["seconds"].items()
                ],
            ),
        ]
    return "\n\n".join(parts) + "\n"


def _runs(results):
    """Each way in which something here was run, and what; once, however many cases there are."""
    runs = {}
    for section in ("cases", "growth", "starts"):
        for name, found in results.get(section, {}).items():
            runs.setdefault(machine_text(found), []).append(name)
    return "\n".join(f"* {text} ({'; '.join(names)})" for text, names in runs.items())


def table(heads, lines):
    """A table in Markdown."""
    made = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in made)


def machine_text(found):
    """The command, the machine and the versions: what many measurements have in common."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    machine = ", ".join(filter(None, (found["accelerator"], found["processor"], f"{found['cores']} cores")))
    return f"`{found['command']}` on {machine}; {versions}."


def _when(found):
    """One line of when it was and how busy the machine was."""
    text = f"{found['date']}, load average before {found['load']:.1f}."
    if found.get("ceiling"):
        rates = [
            f"{rate['gflops']:.0f} GFLOP/s in {precision} ({rate['by']})"
            for precision, rate in found["ceiling"].items()
        ]
        text += f" Large products: {', '.join(rates)}; this case takes {found['gflops']:.1f} GFLOP an image."
    return text


def _case_table(found):
    lines = []
    for name, row in rows(found).items():
        share = "" if row["share"] is None else f"{row['share']:.0%}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        seconds = found["contenders"][name]["seconds"]
        spread = f"{min(seconds) * 1e3 / found['batch']:.1f} to {max(seconds) * 1e3 / found['batch']:.1f}"
        cells = f"{row['ms']:.1f}", spread, f"{row['rate']:.1f}", ratio, share
        lines.append((_who(name), *cells, f"{row['peak']:.0f}", f"{row['first']:.1f}"))
    heads = ("contender", "ms an image", "lowest to highest", "images/s", "ratio", "of the ceiling")
    return table((*heads, "peak MiB", "first, s"), lines)


def _who(name):
    return f"{name} (peer)" if CONTENDERS[name].peer else name


def _absences(found):
    """A list of who is not in the table, and why."""
    lines = []
    for name, contender in found["contenders"].items():
        if "error" in contender:
            lines.append(f"* {name} failed: `{contender['error']}`")
        elif "missing" in contender:
            note = "; vit_jax is on no package index" if "vit_jax" in contender["missing"] else ""
            lines.append(f"* {name}: not here without {', '.join(contender['missing'])}{note}.")
    return ["\n".join(lines)] if lines else []


def _growth_table(found):
    lines = []
    for name, numbers in grown(found).items():
        for size, row in numbers.items():
            tokens = found["sizes"][size]["tokens"]
            speed = "" if row["speed"] is None else f"{row['speed']:.2f}"
            memory = f"{row['memory']:.0f}", f"{row['memory'] * 1024 / tokens:.0f}"
            lines.append((name, size, tokens, f"{row['ms']:.0f}", speed, *memory))
        if (steeper := steepening(found, numbers)) is not None:
            lines.append(
                (f"{name}: memory a token, upper ÷ lower half", "", "", "", "", "", f"{steeper:.2f}")
            )
    return table(("contender", "px", "tokens", "ms", "GFLOP/s ÷", "memory, MiB", "KiB a token"), lines)


def _flat(found):
    return {
        f"{name}, {size} px": contender
        for name, sizes in found["contenders"].items()
        for size, contender in sizes.items()
    }


# Figures ----------------------------------------------------------------------------------------


def _draw(paint, found, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = paint(pyplot, found)
    beside = path.with_name(f".{path.name}")
    figure.savefig(beside, format="png", dpi=100)
    pyplot.close(figure)
    os.replace(beside, path)


def _bars(pyplot, cases):
    """A panel for each case: the ratio to the best peer, ours in another colour."""
    columns = min(3, len(cases))
    lines = math.ceil(len(cases) / columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(6 * columns, 3.6 * lines), squeeze=False)
    for panel in axes.flat[len(cases) :]:
        panel.set_axis_off()
    for panel, (case, found) in zip(axes.flat, cases.items()):
        made = {name: row for name, row in rows(found).items() if row["ratio"]}
        colours = ["tab:gray" if CONTENDERS[name].peer else "tab:blue" for name in made]
        drawn = panel.barh(list(made), [row["ratio"] for row in made.values()], color=colours)
        panel.bar_label(drawn, [f" {row['rate']:.1f}/s" for row in made.values()], fontsize=8)
        panel.axvline(1, color="black", linewidth=0.8)
        panel.margins(x=0.15)
        panel.invert_yaxis()
        panel.set_title(case, fontsize=10)
        panel.tick_params(labelsize=8)
    figure.supxlabel("speed relative to the best peer; images a second beside the bars")
    figure.tight_layout()
    return figure


def _curves(pyplot, growth):
    """Time and memory over the tokens, a line for each contender of each model and precision."""
    lines = len(growth)
    figure, axes = pyplot.subplots(lines, 2, figsize=(12, 3.6 * lines), squeeze=False)
    for (time, memory), (case, found) in zip(axes, growth.items()):
        for name, numbers in grown(found).items():
            tokens = [found["sizes"][size]["tokens"] for size in numbers]
            time.plot(tokens, [row["ms"] for row in numbers.values()], "o-", label=name)
            memory.plot(tokens, [row["memory"] for row in numbers.values()], "o-", label=name)
        time.set(title=f"{case}: ms an image", xlabel="tokens", xscale="log", yscale="log")
        memory.set(title=f"{case}: MiB above the model's", xlabel="tokens")
        time.legend(fontsize=8)
    figure.tight_layout()
    return figure
