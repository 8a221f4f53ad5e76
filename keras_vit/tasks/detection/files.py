"""The folder of --boxes: copies of the images with the objects drawn into them."""

from keras_vit.cli.prediction_folder import Folder


class Boxes(Folder):
    """Images with the objects of a detector, or of a segmenter by queries."""

    option, task = "boxes", "detection"
    key, columns = "objects", ("score", "left", "top", "right", "bottom")

    def writer(self, folder, model, files, args):
        from keras_vit.preprocessing.image_files import image_bytes
        from keras_vit.tasks.detection.pictures import box_overlay
        from keras_vit.tasks.task import names_or_indices

        folder.mkdir()
        names = names_or_indices(model.class_names, model.num_classes)

        def write(path, image, found):
            self.write(folder / files[path], image_bytes(box_overlay(image, found, names)))

        return write
