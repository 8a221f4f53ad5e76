"""What `predict` has for keypoints: the boxes of their objects, and the folder of drawn images of --boxes."""

from keras_vit.cli import options
from keras_vit.cli.prediction_folder import Folder


class Skeletons(Folder):
    """Images with the points of their objects, and the lines of the skeleton."""

    option, task = "boxes", "keypoints"
    row_options = ("objects", "object_classes", "object_score", "flip_test")
    key, columns = "keypoints", ("score", "x", "y", "object")

    def add_arguments(self, add):
        source = (
            "keypoints: boxes of the objects: a detector, as --model, or a file of COCO's JSON or of predict "
            "(default: an image is an object)"
        )
        add("--objects", metavar="SOURCE", help=source)
        classes = f"--objects: classes of the objects, {options.COMMAS} (default: all)"
        add("--object_classes", type=options.words, metavar="NAMES", help=classes)
        score = "--objects: least score of an object (default: 0.3 of a detector, 0 of a file)"
        add("--object_score", type=options.fraction, help=score)
        mirrored = "keypoints: average the heat maps with those of the mirrored image"
        add("--flip_test", action="store_true", help=mirrored)

    def check_rows(self, args):
        if args.objects is None and (args.object_classes or args.object_score is not None):
            raise ValueError("--object_classes and --object_score need --objects")

    def row_arguments(self, args, paths):
        mirrored = {"flip_test": True} if args.flip_test else {}
        if not args.objects:
            return mirrored
        from keras_vit.tasks.keypoints.objects import open_boxes  # needs Keras

        return {"boxes": open_boxes(args, paths), **mirrored}

    def table_rows(self, values):
        numbered = enumerate(values, 1)
        return [{**point, "object": number} for number, estimate in numbered for point in estimate["points"]]

    def writer(self, folder, model, files, args):
        from keras_vit.preprocessing.image_files import image_bytes

        folder.mkdir()

        def write(path, image, poses):
            self.write(folder / files[path], image_bytes(poses.overlay(image)))

        return write
