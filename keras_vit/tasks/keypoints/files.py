"""The folder of --boxes for keypoints: copies of the images with the points drawn into them."""

from keras_vit.cli.prediction_folder import Folder


class Skeletons(Folder):
    """Images with the points of their object, and the lines of the skeleton."""

    option, task = "boxes", "keypoints"

    def writer(self, folder, model, files, args):
        from keras_vit.inspection.png import png_bytes
        from keras_vit.tasks.keypoints.pictures import DRAWN, skeleton_overlay

        folder.mkdir()
        least = DRAWN if args.threshold is None else args.threshold

        def write(path, image, points):
            self.write(
                folder / files[path], png_bytes(skeleton_overlay(image, points, model.skeleton, least))
            )

        return write
