"""Compare the speed of exports with timm's model on an x86 CPU; writes SERVERS.md and SERVERS.json.

    python benchmarks/servers.py --variants S/16 --threads 1 --rounds 5

Each system runs in its own process, and the processes take turns. Images and weights are random, one image a
batch. The int8 models of OpenVINO are both quantized by NNCF with the same options.
"""

import argparse
import json
import os
import pathlib
import statistics
import tempfile

import systems
from harness import HERE, command, interleaved, measure
from machine import circumstances, use_cores, versions
from report import machine_text, table
from systems import Case

OURS = {  # name → file
    "keras_vit LiteRT float32": "float32.tflite",
    "keras_vit ONNX Runtime float32": "float32.onnx",
    "keras_vit OpenVINO float32": "float32.xml",
    "keras_vit LiteRT dynamic int8": "dynamic_int8.tflite",
    "keras_vit ONNX Runtime int8": "dynamic_int8.onnx",
    "keras_vit OpenVINO int8": "int8.xml",
}
PEERS = {
    "timm ONNX Runtime float32": "timm.onnx",
    "timm OpenVINO float32": "timm.xml",
    "timm compiled float32": None,
    "timm ONNX Runtime int8": "timm_int8.onnx",
    "timm OpenVINO int8": "timm_int8.xml",
}
PACKAGES = ("keras_vit", "ai-edge-litert", "onnxruntime", "openvino", "nncf", "torch", "timm")
CALIBRATION = 8  # images; of noise, since the ranges do not change the speed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--variants", nargs="+", default=("S/16", "B/16"), help="such as L/16")
    parser.add_argument("--threads", nargs="+", type=int, default=(1, 2))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--files", type=pathlib.Path, help="folder that keeps the exports for another run")
    parser.add_argument("--output", type=pathlib.Path, default=HERE, help="folder of SERVERS.*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folders = {}
        for variant in args.variants:
            folder = folders[variant] = (args.files or pathlib.Path(temporary)) / variant.replace("/", "-")
            for function in ("ours", "peers"):
                if not (folder / function).exists():
                    folder.mkdir(parents=True, exist_ok=True)
                    measure(f"servers.write_{function}", variant=variant, folder=str(folder))
                    (folder / function).touch()
        found = circumstances() | {"versions": versions(PACKAGES), "cases": {}}
        for variant, folder in folders.items():
            for threads in args.threads:
                options = {"variant": variant, "folder": str(folder), "threads": threads}
                commands = {
                    name: command("servers.measure_runtime", name=name, **options) for name in (*OURS, *PEERS)
                }
                print(f"{variant}, {threads} threads", flush=True)
                found["cases"][f"{variant}, {threads} thread{'s' * (threads > 1)}"] = interleaved(
                    commands, args.rounds
                )
    text = report(found)
    print(text)
    (args.output / "SERVERS.json").write_text(json.dumps(found, indent=1) + "\n")
    (args.output / "SERVERS.md").write_text(text)


def report(found):
    """The text of SERVERS.md."""
    times = {
        case: {
            name: statistics.median(row["seconds"]) * 1e3 for name, row in rows.items() if "error" not in row
        }
        for case, rows in found["cases"].items()
    }
    lines = [(name, *(_cell(times[case].get(name)) for case in times)) for name in (*OURS, *PEERS)]
    parts = [
        "# CPU servers",
        f"{found['date']}, load average before {found['load']:.1f}: {machine_text(found)}",
        "Medians of interleaved rounds, in ms for one image of 224×224 pixels; random weights and images.",
        table(("system", *times), lines),
        "## Comparison",
        "The peer's time ÷ that of this package's fastest export of its kind; above 1, the export is faster.",
        table(("peer", *times), [(name, *ratios) for name, ratios in _comparisons(times)]),
    ]
    return "\n\n".join(parts) + "\n"


def _comparisons(times):
    for kind in ("float32", "int8"):
        for peer in (name for name in PEERS if name.endswith(kind)):
            yield peer, [_cell(_ratio(case, peer, kind), 2) for case in times.values()]


def _ratio(case, peer, kind):
    ours = [case[name] for name in OURS if name.endswith(kind) and name in case]
    return case[peer] / min(ours) if ours and peer in case else None


def _cell(value, digits=1):
    return "–" if value is None else f"{value:.{digits}f}"


# In a process of `harness.py` -------------------------------------------------------------------


def write_ours(variant, folder):
    """Export a variant with random weights; an empty answer."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import numpy as np

    from keras_vit.export import export_onnx, export_openvino, export_saved_model, export_tflite

    folder = pathlib.Path(folder)
    saved = export_saved_model(systems.keras_model(Case(variant)), folder / "saved_model", warmup=())
    writers = {".tflite": export_tflite, ".onnx": export_onnx, ".xml": export_openvino}
    noise = np.random.default_rng(0).random((CALIBRATION, 224, 224, 3), "float32")
    for file in OURS.values():
        path = folder / file
        options = {"calibration": noise} if path.stem == "int8" else {}
        writers[path.suffix](saved, path, precision=path.stem, **options)
    return {}


def write_peers(variant, folder):
    """The same of timm's model, through ONNX; an empty answer."""
    import numpy as np
    import torch

    systems.declare_torchvision()
    model, folder = systems.timm_model(Case(variant)).eval(), pathlib.Path(folder)
    onnx = folder / "timm.onnx"
    axes = {"dynamic_axes": {"images": {0: "batch"}}, "input_names": ["images"]}
    torch.onnx.export(model, torch.zeros(1, 3, 224, 224), onnx, opset_version=17, dynamo=False, **axes)
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(onnx, folder / "timm_int8.onnx", weight_type=QuantType.QInt8, per_channel=True)
    import nncf
    import openvino

    read = openvino.Core().read_model(onnx)
    read.reshape({"images": [1, 3, 224, 224]})
    openvino.save_model(read, folder / "timm.xml", compress_to_fp16=False)
    noise = np.random.default_rng(0).normal(size=(CALIBRATION, 1, 3, 224, 224)).astype("float32")
    options = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": CALIBRATION}
    openvino.save_model(nncf.quantize(read, nncf.Dataset([*noise]), **options), folder / "timm_int8.xml")
    return {}


def measure_runtime(name, variant, folder, threads):
    """Open a system; the function that times it."""
    use_cores(threads)
    case, folder = Case(variant), pathlib.Path(folder)
    if name in OURS:
        os.environ["KERAS_BACKEND"] = "tensorflow"
        return systems.timed(systems.runtime_step(case, folder, OURS[name]))
    if PEERS[name] is None:
        return systems.timed(systems.torch_step(case, folder, systems.timm_model, compiled=True))
    images, file = case.data()[0].transpose(0, 3, 1, 2).copy(), folder / PEERS[name]
    if file.suffix == ".onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = onnxruntime.InferenceSession(file, options, ["CPUExecutionProvider"])
        return systems.timed(lambda: session.run(None, {"images": images}))
    from openvino import Core

    from keras_vit.export.openvino import runtime_settings

    core = Core()
    model = core.read_model(file)
    settings = runtime_settings(core, model, "int8" if "int8" in name else "float32", threads)
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    return systems.timed(lambda: request.infer({0: images}))


if __name__ == "__main__":
    main()
