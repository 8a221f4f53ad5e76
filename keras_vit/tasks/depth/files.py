"""The folder of --maps for depth: numbers, PNG files with 16 bits, pictures, and point clouds."""

import argparse
import io
import json

from keras_vit.cli.prediction_folder import Folder

PNGS, PICTURES, CLOUDS = "png", "pictures", "points"
ARRAYS = {"metric": "depths", "relative": "depths", "disparity": "disparities", "values": "values"}


class DepthMaps(Folder):
    """Maps of numbers, and pictures of them if there is one channel."""

    option, task = "maps", "depth"
    options = ("point_cloud", "camera")

    def add_arguments(self, add):
        cloud = "depth, --maps: also write a point cloud of each image, a .ply file"
        add("--point_cloud", action="store_true", help=cloud)
        camera = "--point_cloud: focal lengths and center in pixels of the images, FX,FY,CX,CY"
        add("--camera", type=_camera, metavar="FX,FY,CX,CY", help=camera)

    def check(self, args):
        if args.point_cloud != bool(args.camera):
            raise ValueError("--point_cloud and --camera need each other")

    def writer(self, folder, model, files, args):
        from keras_vit.tasks.depth.estimating import DEPTHS

        quantity = model.quantity
        if args.point_cloud and quantity not in DEPTHS:
            raise ValueError(f"--point_cloud needs a model of depth; this one's quantity is {quantity!r}")
        folder.mkdir()
        is_single = model.num_classes == 1

        def write(path, image, values):
            name = files[path]
            self.write(
                folder / ARRAYS[quantity] / f"{name[:-4]}.npy",
                array_bytes(values[..., 0] if is_single else values),
            )
            if is_single:
                self._write_pictures(folder, name, model, values[..., 0])
            if args.point_cloud:
                self._write_cloud(folder / CLOUDS / name, image, values, args.camera)

        return write

    def _write_pictures(self, folder, name, model, values):
        """Write a picture in colors and, if there are no negative values, a PNG file with 16 bits."""
        from keras_vit.preprocessing.image_files import image_bytes
        from keras_vit.tasks.depth.estimating import is_bounded
        from keras_vit.tasks.depth.pictures import depth_png, legend_picture, png_scale

        quantity = model.quantity
        picture = legend_picture(values, near_is_high=quantity == "disparity")
        self.write(folder / PICTURES / name, image_bytes(picture))
        if quantity != "values":
            scale = png_scale(model.max_depth if is_bounded(model) else values.max())
            self.write(folder / PNGS / name, depth_png(values, scale))
            text = json.dumps({"quantity": quantity, "value_of_one": scale}) + "\n"
            self.write(folder / PNGS / f"{name[:-4]}.json", text.encode())

    def _write_cloud(self, path, image, values, camera):
        from keras_vit.tasks.depth.point_cloud import point_cloud, write_ply

        fx, fy, cx, cy = camera
        points, colors = point_cloud(values, [[fx, 0, cx], [0, fy, cy], [0, 0, 1]], image)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_ply(path.with_suffix(".ply"), points, colors)


def array_bytes(values):
    """The contents of a .npy file of numbers, as float32."""
    import numpy as np

    file = io.BytesIO()
    np.save(file, np.float32(values))
    return file.getvalue()


def _camera(text):
    """Parse the four numbers of --camera."""
    try:
        fx, fy, cx, cy = map(float, text.split(","))
    except ValueError:
        fx = fy = 0
    if not (0 < fx < float("inf") and 0 < fy < float("inf")):
        raise argparse.ArgumentTypeError(f"expected numbers FX,FY,CX,CY with FX, FY > 0; got {text!r}")
    return fx, fy, cx, cy
