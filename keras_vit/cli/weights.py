"""`keras-vit weights show|convert|push`: what a checkpoint holds, one layout to another, and to the hub."""

from _keras_vit_cli import settings
from keras_vit.cli.report import check_output, report, table
from keras_vit.cli.source import finished_run, run_of
from keras_vit.data.datasets import title_of
from keras_vit.messages import listed
from keras_vit.tasks import TASKS
from keras_vit.weights.catalogue import find
from keras_vit.weights.load import from_pretrained
from keras_vit.weights.push import push_to_hub
from keras_vit.weights.save import files_to_write, save_weights
from keras_vit.weights.show import show_checkpoint

# Arguments whose value is usual and says nothing of most files.
_USUAL = {
    **{"in_channels": 3, "qkv_bias": True, "num_registers": 0, "resnet": None, "resnet_width": 64},
    **{"pre_norm": False, "norm_after_pooling": False, "distillation": False, "layer_scale": None},
    **{"representation_size": None, "dropout_rate": 0.0, "attention_dropout_rate": 0.0},
    **{"stochastic_depth_rate": 0.0, "resnet_form": "vit_jax", "task": None, "split_seed": None},
}
# What is wrong with a file, by the keys of `show_checkpoint`.
_LISTS = {
    "only_in_file": "only in file",
    "only_in_model": "only in model",
    "wrong_shape": "wrong shape",
    "not_finite": "NaN or infinity",
}


def run(args):
    check_output(args)
    return {"show": _show, "convert": _convert, "push": _push}[args.action](args)


def _show(args):
    found = show_checkpoint(args.source, **_given(args))
    arguments = dict(found["arguments"])
    names = arguments.pop("class_names", None) or ()
    preprocessing = arguments.pop("preprocessing", None) or {}
    grid = found["grid"]
    rows = [
        ("file", found["file"]),
        ("layout", found["layout"]),
        ("read beside it", found["configuration"] or "nothing"),
        ("variant", found["variant"] or "none of this name"),
        ("parameters", f"{found['parameters']:,}"),
        ("stored as", ", ".join(found["dtypes"])),
        ("position grid", f"{grid[0]}×{grid[1]}" if grid else "none stored"),
        *((name, value) for name, value in sorted(arguments.items()) if _USUAL.get(name, ...) != value),
        *(("class names", f"{names[0]!r} … {names[-1]!r}") for _ in names[:1]),
        *(("preprocessing", ", ".join(f"{k} {v}" for k, v in p.items())) for p in [preprocessing] if p),
        *(("beside the model", listed(found["left_out"])) for _ in found["left_out"][:1]),
    ]
    fits = not any(found[name] for name in _LISTS)
    rows += [(title, listed(found[name])) for name, title in _LISTS.items() if found[name]]
    rows.append(("fits", "every array and variable" if fits else "no: from_pretrained refuses this file"))
    text = table([(name, str(value)) for name, value in rows], ("", "")).strip()
    report(args, {**found, "fits": fits}, text)
    return 0 if fits else 2


def _convert(args):
    files_to_write(args.destination, args.layout, args.overwrite, "--overwrite")
    model = from_pretrained(args.source, **_given(args))
    path = save_weights(model, args.destination, args.layout, dtype=args.dtype, overwrite=args.overwrite)
    value = {"source": str(args.source), "path": str(path), "layout": args.layout, "dtype": args.dtype}
    report(args, value, f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB, {args.layout}, {args.dtype})")


def _push(args):
    url = push_to_hub(
        from_pretrained(args.source, **_given(args)),
        args.repository,
        layout=args.layout,
        private=args.private or None,
        **_facts(args),
    )
    report(args, {"source": str(args.source), "url": url}, f"pushed to {url}")


def _given(args):
    return {"trust": args.trust, "sha256": args.sha256, **settings(args.set)}


def _facts(args):
    """What is known of the weights: from the arguments, the catalogue, or the run that trained them."""
    trained, row = run_of(args.source), find(args.source)
    run = None if args.set else finished_run(args.source)  # whose scores are of the model as it was
    best = f"test_{TASKS[trained['recipe']['task']].primary_metric}" if run else None
    scored = run and best in run.result
    data = title_of(trained["dataset"]) if trained else row and row.pretrained_on
    return {
        "licence": args.licence or (row and row.licence),
        "dataset": args.trained_on or data,
        "metrics": {best.removeprefix("test_"): run.result[best]} if scored else None,
    }
