"""What options, functions and attributes are called in other packages, for messages."""

# Options, fields and values; of a name, only those are suggested that a function has.
NAMES = {
    "image_size": "img_size imgsz input_size input_shape resolution",
    "num_classes": "num_labels n_classes classes nc",
    "hidden_size": "embed_dim dim width d_model hidden_dim",
    "num_layers": "depth num_hidden_layers n_layers",
    "num_heads": "heads num_attention_heads n_heads",
    "mlp_dim": "intermediate_size",
    "dropout_rate": "drop_rate dropout hidden_dropout_prob",
    "stochastic_depth_rate": "drop_path drop_path_rate",
    "in_channels": "in_chans num_channels channels",
    "num_registers": "reg_tokens num_register_tokens",
    "class_names": "id2label names",
    "base_lr": "lr lr0 learning_rate",
    "weight_decay": "wd",
    "clip_norm": "max_grad_norm grad_clip gradient_clip_val",
    "accumulation_steps": "gradient_accumulation_steps accum_iter",
    "optimizer": "opt optim",
    "decay": "sched scheduler lr_scheduler_type",
    "batch_size": "batch bs per_device_train_batch_size",
    "remat": "gradient_checkpointing",
    "float32": "fp32",
    "float16": "fp16 half",
    "bfloat16": "bf16",
    "mixed_float16": "amp",
    "huggingface": "transformers hf",
    "validation": "dev eval",
    "images": "source pixel_values",
    "threshold": "conf confidence score_threshold conf_threshold",
    "top": "top_k topk k",
    "iou": "iou_threshold nms_threshold",
}
# Options that loading a model does without, and what it does instead.
NOTES = {
    "keras_vit.from_pretrained(NAME) loads weights": "pretrained weights checkpoint_path",
    "num_classes=0 leaves out the head": "include_top",
    "another num_classes gives a new head": "ignore_mismatched_sizes pretrained_top",
    "dtype='mixed_float16' computes in 16 bits": "torch_dtype",
    "keras.device, or CUDA_VISIBLE_DEVICES, chooses a device": "device device_map",
}
# Attributes of the packages.
FUNCTIONS = {
    "keras_vit.from_pretrained": "create_model from_preset load load_model pipeline hub applications vit "
    "ViTB16 ViTB32 ViTL16 ViTL32 vit_b16 vit_b32 vit_l16 vit_l32 vit_b_16 vit_b_32 vit_l_16 vit_l_32 "
    "vit_h_14 AutoModel AutoModelForImageClassification ViTModel ViTForImageClassification "
    "ViTImageClassifier ViTBackbone ImageClassifier Backbone",
    "keras_vit.VisionTransformer": "ViT",
    "keras_vit.ObjectDetector": "YOLO RTDETR",
    "keras_vit.list_models": "list_pretrained list_presets",
    "model.preprocessing": "AutoImageProcessor AutoProcessor ViTImageProcessor create_transform "
    "preprocess_input",
    "model.classify": "decode_predictions",
    "keras_vit.training.train": "finetune fit Trainer TrainingArguments train_object_detection "
    "train_semantic_segmentation",
    "keras_vit.data.load_dataset": "ImageFolder image_dataset_from_directory create_dataset",
    "keras_vit.embeddings": "embed",
    "keras_vit.layers.PatchEmbedding": "PatchEmbed PatchEmbeddings ViTPatchingAndEmbedding",
    "keras_vit.layers.EncoderBlock": "TransformerEncoder TransformerEncoderBlock Block "
    "ViTEncoderBlock ViTLayer",
}
# Attributes of models.
METHODS = {
    "model.fit": "train finetune",
    "model.evaluate": "val validate",
    "model(inputs)": "forward",
    "model(inputs), which is inference without training=True": "eval",
    "model.feature_extractor": "forward_features forward_intermediates get_intermediate_layers",
    "model.preprocessing": "preprocessor processor image_processor default_cfg pretrained_cfg",
    "model.get_config": "config cfg",
    "model.class_names": "id2label names",
    "model.weights": "parameters named_parameters",
    "model.load_weights": "load_state_dict",
    "model.get_layer('head')": "get_classifier head",
    "keras_vit.from_pretrained(NAME, num_classes=…)": "reset_classifier",
    "keras_vit.from_pretrained(NAME, num_classes=0)": "backbone",
    "keras_vit.from_pretrained": "from_pretrained from_preset load",
    "keras_vit.save_weights": "save_pretrained save_to_preset state_dict",
    "keras_vit.push_to_hub": "push_to_hub upload_preset",
    "keras.device or CUDA_VISIBLE_DEVICES": "to cuda cpu",
    "keras_vit.VisionTransformer.classify or ImageTextModel.zero_shot": "classify",
    "keras_vit.from_pretrained(NAME, kind='image_text')": "zero_shot encode_text encode_images similarity "
    "get_text_features get_image_features encode_image",
    "keras_vit.ImageSegmenter.segment": "segment",
    "keras_vit.ObjectDetector.detect": "detect track",
    "keras_vit.DepthEstimator.estimate": "estimate",
    "keras_vit.KeypointEstimator.estimate_keypoints": "estimate_keypoints",
}
# Arguments with which other models are called.
CALLS = {
    "model.feature_extractor": "output_hidden_states hidden_states",
    "keras_vit.inspection.attention_weights": "output_attentions",
    "image_size=(None, None)": "interpolate_pos_encoding",
    "model(inputs)": "pixel_values",
}


def by_name(table):
    """A table from our names to those of other packages, by the latter.

    >>> by_name({"image_size": "img_size imgsz"})
    {'img_size': 'image_size', 'imgsz': 'image_size'}
    """
    return {name: ours for ours, names in table.items() for name in names.split()}


RENAMED, NOTED, FUNCTION, METHOD, CALL = map(by_name, (NAMES, NOTES, FUNCTIONS, METHODS, CALLS))


def instead(name, table):
    """The end of a message about an unknown name, if a package has it.

    >>> instead("save_pretrained", METHOD), instead("rose", METHOD)
    ('; use keras_vit.save_weights', '')
    """
    return f"; use {table[name]}" if name in table else ""
