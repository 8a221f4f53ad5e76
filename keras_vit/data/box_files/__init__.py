"""Files of labels with boxes: COCO's JSON, YOLO's text, Pascal VOC's XML and `metadata.jsonl`."""
