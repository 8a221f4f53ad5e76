"""Models for deployment: SavedModel, TF Hub, LiteRT, ONNX, OpenVINO and web pages."""

from keras_vit.lazy import lazy_names

# A program that opens one format need not import the others.
LAZY = {
    "Description": "description",
    "ExportedModel": "exported_model",
    "Facts": "hub",
    "Measurement": "hub",
    "SavedModelLayer": "saved_model_layer",
    "export_folder": "folder",
    "export_hub": "hub",
    "export_image_text": "towers",
    "export_onnx": "onnx",
    "export_openvino": "openvino",
    "export_saved_model": "saved_model",
    "export_text_tflite": "towers",
    "export_tflite": "tflite",
    "export_web": "web",
    "open_exported": "exported_model",
    "open_text": "towers",
    "read_description": "description",
    "saved_model_folder": "tar_archive",
}
__getattr__, __dir__ = lazy_names(__name__, LAZY)
