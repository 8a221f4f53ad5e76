"""RESULTS.md and its figures, written from RESULTS.json, which keeps the results of several runs."""

import json
import math
import os
import statistics

from systems import SYSTEMS

OURS = "keras_vit"  # with default settings
SMALLEST = "224"  # px
INTRODUCTION = """\
`make benchmark` measures and writes this page. `benchmarks/speed.py` and `benchmarks/scaling.py` run
single cases; the results of the others stay. Only the rows of one table were measured side by side, in
interleaved rounds with a process per system: between tables the machine or its load may differ. Weights
and images are random, with 1000 classes.

* `keras_vit` runs with default settings: `predict_on_batch`, and in training the step of `fit`. `graph` and
  `XLA` are `tf.function` without and with `jit_compile`, `compiled` is `torch.compile`. A training step clips
  at a global norm of 1 and uses SGD with momentum, whose accumulator this package's recipe keeps in bfloat16.
* bfloat16 means bfloat16 weights in inference, and float32 weights in training (`mixed_bfloat16`,
  `torch.autocast`). Exported formats compute in float32, except `dynamic int8` and
  OpenVINO's `bfloat16`.
* Speed ratio: the fastest peer's time ÷ the system's; above 1 is faster. Of peak: the model's FLOPs (of three
  forward passes in training) ÷ the highest rate of large matmuls in that precision. Peak MiB: resident
  memory after the model is built, or the accelerator's. First: the first step, which compiles.

[PROFILE.md](PROFILE.md) shows where the time goes and what limits it."""
LARGER = """\
One image at a time; the paper's figure 12. GFLOP/s, which include attention's quadratic part, are relative to
the same system at 224 px. Memory is the peak during the steps minus that of the built model."""


def update(path, section, found):
    """Put entries into a section of the JSON file; they replace those of the same name."""
    results = json.loads(path.read_text()) if path.exists() else {}
    results.setdefault(section, {}).update(found)
    _write(path, json.dumps(results, indent=1) + "\n")


def add_program(path, page, name, row, text_of):
    """Put a compiled program into a JSON file, and write its page, the text of all results."""
    results = json.loads(path.read_text()) if path.exists() else {"programs": {}, "notes": []}
    results["programs"][name] = row
    _write(path, json.dumps(results, indent=1) + "\n")
    _write(page, text_of(results))
    print(name, json.dumps(row, indent=1))


def write_report(folder):
    """Write RESULTS.md and the figures from RESULTS.json; returns the text."""
    results = json.loads((folder / "RESULTS.json").read_text())
    text = report(results)
    _write(folder / "RESULTS.md", text)
    if results.get("cases"):
        _draw(_bars, results["cases"], folder / "RESULTS.png")
    if results.get("scaling"):
        _draw(_curves, results["scaling"], folder / "SCALING.png")
    return text


def _write(path, text):
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(text)
    os.replace(temporary, path)


def page_of_cases(heading, introduction, results, peers):
    """The text of a page with a table of systems for each case, next to the faster form of some peers."""
    middle = statistics.median
    parts = [f"# {heading}", introduction]
    for title, found in results.get("cases", {}).items():
        times = {n: [t * 1e3 for t in s["seconds"]] for n, s in found["systems"].items() if s.get("seconds")}
        best = min(middle(times[name]) for name in peers if name in times)
        lines = [
            (name, *(f"{of(t):.1f}" for of in (middle, min, max)), f"{best / middle(t):.2f}")
            for name, t in times.items()
        ]
        failed = [f"{n}: `{s['error']}`" for n, s in found["systems"].items() if "error" in s]
        parts += [f"## {title}", f"{found['date']}: {machine_text(found)}"]
        if found["difference"] is not None:
            parts.append(f"Difference of the outputs: {found['difference']:.1e}.")
        parts += [table(("system", "ms", "lowest", "highest", "speed ratio"), lines), *failed]
    return "\n\n".join(parts) + "\n"


# Numbers ----------------------------------------------------------------------------------------


def rows(found):
    """name → the numbers of each measured system of a case.

    Args:
        found: A case of RESULTS.json.

    Returns:
        name → dict of `ms` and `rate` (per image), `ratio` (the fastest peer's time ÷ its own), `of_peak`,
        `memory` (MiB) and `first` (seconds); None if unknown.
    """
    medians = {name: statistics.median(s["seconds"]) for name, s in found["systems"].items() if _done(s)}
    best = min((s for name, s in medians.items() if SYSTEMS[name].peer), default=None)
    peak = (found["peak"] or {}).get(found["precision"])
    result = {}
    for name, seconds in medians.items():
        rate, memory = found["batch"] / seconds, found["systems"][name]["memory"]
        integer = "int8" in name  # The peak rate is for floating point.
        result[name] = {
            "ms": 1e3 / rate,
            "rate": rate,
            "ratio": best and best / seconds,
            "of_peak": None if integer else peak and rate * found["gflops"] / peak["gflops"],
            "memory": memory["device"] or max(memory["warming"], memory["running"]),
            "first": found["systems"][name]["first"],
        }
    return result


def by_size(found):
    """name → size (a string) → numbers of each system: `ms`, `speed` (GFLOP/s relative to 224 px), `memory`.

    `memory` is in MiB, without that of the built model.
    """
    result = {}
    for name, sizes in found["systems"].items():
        done = {size: s for size, s in sizes.items() if _done(s)}
        rates = {s: found["sizes"][s]["gflops"] / statistics.median(m["seconds"]) for s, m in done.items()}
        result[name] = {
            size: {
                "ms": statistics.median(s["seconds"]) * 1e3,
                "speed": rates[size] / rates[SMALLEST] if SMALLEST in rates else None,
                "memory": (s["memory"]["device"] or s["memory"]["running"]) - s["memory"]["built"],
            }
            for size, s in done.items()
        }
    return result


def comparison(cases):
    """A row per case: (case, ms of `keras_vit`, fastest peer, its ms, speed ratio)."""
    found = []
    for case, numbers in cases.items():
        measured = rows(numbers)
        peers = [name for name in measured if SYSTEMS[name].peer]
        if peers and OURS in measured:
            best, ours = min(peers, key=lambda name: measured[name]["ms"]), measured[OURS]
            found.append(
                (case, *_figures(ours["ms"]), best, *_figures(measured[best]["ms"]), f"{ours['ratio']:.2f}")
            )
    return found


def _figures(*values):
    return tuple(f"{value:.1f}" for value in values)


def _done(system):
    return bool(system.get("seconds")) and "memory" in system


# The text ---------------------------------------------------------------------------------------


def report(results):
    """The text of RESULTS.md."""
    parts = ["# Speed", INTRODUCTION, runs(results)]
    cases, scaling = results.get("cases", {}), results.get("scaling", {})
    if cases:
        heads = ("case", "keras_vit, ms per image", "fastest peer", "ms per image", "speed ratio")
        parts += ["## Comparison with peers", table(heads, comparison(cases))]
        parts += ["![images per second, relative to the fastest peer](RESULTS.png)"]
    parts += case_sections(cases)
    if scaling:
        parts += ["# Scaling with image size", LARGER, "![time and memory by image size](SCALING.png)"]
    for case, found in scaling.items():
        flat = {f"{n}, {size} px": s for n, sizes in found["systems"].items() for size, s in sizes.items()}
        parts += [f"## {case}", _when(found), _scaling_table(found), *_absences(flat)]
    for name, found in results.get("starts", {}).items():
        lines = [
            (what, f"{statistics.median(s):.2f}", f"{min(s):.2f} to {max(s):.2f}")
            for what, s in found["seconds"].items()
        ]
        parts += [f"# {name.capitalize()}", _when(found), table(("what", "s", "lowest to highest"), lines)]
    return "\n\n".join(parts) + "\n"


def case_sections(cases):
    """The paragraphs of each case: its title, circumstances, table and the systems without measurements."""
    for case, found in cases.items():
        yield from (f"## {case}", _when(found), _case_table(found), *_absences(found["systems"]))


def runs(results):
    """One line per command and machine, with the cases that it measured."""
    runs = {}
    for section in ("cases", "scaling", "starts"):
        for name, found in results.get(section, {}).items():
            runs.setdefault(machine_text(found), []).append(name)
    return "\n".join(f"* {text} ({'; '.join(names)})" for text, names in runs.items())


def table(heads, lines):
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def machine_text(found):
    """The command, the machine and the versions of a measurement."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    machine = ", ".join(filter(None, (found["accelerator"], found["processor"], f"{found['cores']} cores")))
    return f"`{found['command']}` on {machine}; {versions}."


def _when(found):
    """The date, the load average and the peak rates."""
    text = f"{found['date']}, load average before {found['load']:.1f}."
    if found.get("peak"):
        rates = [
            f"{rate['gflops']:.0f} GFLOP/s in {precision} ({rate['by']})"
            for precision, rate in found["peak"].items()
        ]
        text += f" Large matmuls: {', '.join(rates)}; this case takes {found['gflops']:.1f} GFLOP per image."
    return text


def _case_table(found):
    lines = []
    for name, row in rows(found).items():
        seconds = found["systems"][name]["seconds"]
        span = " to ".join(_figures(*(s * 1e3 / found["batch"] for s in (min(seconds), max(seconds)))))
        of_peak = "" if row["of_peak"] is None else f"{row['of_peak']:.0%}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        label = f"{name} (peer)" if SYSTEMS[name].peer else name
        ms, rate, first = _figures(row["ms"], row["rate"], row["first"])
        lines.append((label, ms, span, rate, ratio, of_peak, f"{row['memory']:.0f}", first))
    heads = ("system", "ms per image", "lowest to highest", "images/s", "speed ratio", "of peak")
    return table((*heads, "peak MiB", "first, s"), lines)


def _absences(systems):
    """A list of the systems that failed or are not installed."""
    lines = []
    for name, system in systems.items():
        if "error" in system:
            lines.append(f"* {name} failed: `{system['error']}`")
        elif "missing" in system:
            lines.append(f"* {name}: {', '.join(system['missing'])} is not installed.")
    return ["\n".join(lines)] if lines else []


def _scaling_table(found):
    lines = []
    for name, numbers in by_size(found).items():
        for size, row in numbers.items():
            tokens = found["sizes"][size]["tokens"]
            speed = "" if row["speed"] is None else f"{row['speed']:.2f}"
            memory = f"{row['memory']:.0f}", f"{row['memory'] * 1024 / tokens:.0f}"
            lines.append((name, size, tokens, f"{row['ms']:.0f}", speed, *memory))
    heads = ("system", "px", "tokens", "ms", "GFLOP/s, relative", "memory, MiB", "KiB per token")
    return table(heads, lines)


# Figures ----------------------------------------------------------------------------------------


def _draw(paint, found, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = paint(pyplot, found)
    temporary = path.with_name(f".{path.name}")
    figure.savefig(temporary, format="png", dpi=100)
    pyplot.close(figure)
    os.replace(temporary, path)


def _bars(pyplot, cases):
    """A panel for each case with the speed ratios, this package in another color."""
    columns = min(3, len(cases))
    lines = math.ceil(len(cases) / columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(6 * columns, 3.6 * lines), squeeze=False)
    for panel in axes.flat[len(cases) :]:
        panel.set_axis_off()
    for panel, (case, found) in zip(axes.flat, cases.items()):
        shown = {name: row for name, row in rows(found).items() if row["ratio"]}
        colors = ["tab:gray" if SYSTEMS[name].peer else "tab:blue" for name in shown]
        bars = panel.barh(list(shown), [row["ratio"] for row in shown.values()], color=colors)
        panel.bar_label(bars, [f" {row['rate']:.1f}/s" for row in shown.values()], fontsize=8)
        panel.axvline(1, color="black", linewidth=0.8)
        panel.margins(x=0.15)
        panel.invert_yaxis()
        panel.set_title(case, fontsize=10)
        panel.tick_params(labelsize=8)
    figure.supxlabel("speed relative to the fastest peer; labels: images per second")
    figure.tight_layout()
    return figure


def _curves(pyplot, scaling):
    """Time and memory by the number of tokens, a line for each system."""
    lines = len(scaling)
    figure, axes = pyplot.subplots(lines, 2, figsize=(12, 3.6 * lines), squeeze=False)
    for (time, memory), (case, found) in zip(axes, scaling.items()):
        for name, numbers in by_size(found).items():
            tokens = [found["sizes"][size]["tokens"] for size in numbers]
            time.plot(tokens, [row["ms"] for row in numbers.values()], "o-", label=name)
            memory.plot(tokens, [row["memory"] for row in numbers.values()], "o-", label=name)
        time.set(title=f"{case}: ms per image", xlabel="tokens", xscale="log", yscale="log")
        memory.set(title=f"{case}: MiB without the model's", xlabel="tokens")
        time.legend(fontsize=8)
    figure.tight_layout()
    return figure
