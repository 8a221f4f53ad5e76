"""The folder of --show: for each image a picture with what a model predicts of it."""

import math

from keras_vit.cli.prediction_folder import Folder

SMALLEST = 256  # pixels of the longer side, to which smaller images are enlarged
INK, PAPER = "black", "white"


class Shown:
    """A folder of PNG files, one for each image that can be read.

    Objects are drawn as boxes with their names and scores, and what has a method `overlay` by it. Classes of
    pixels are colors over the image, with their names below it, and numbers of pixels, such as depths, are
    colors beside it. Classes and numbers of whole images are words below it.

    Args:
        folder: pathlib.Path, which does not exist.
        task: The model's `LabelTask`.
        model: A live or an exported one.
        files: dict from the path of an image to the relative path of a PNG file.
    """

    def __init__(self, folder, task, model, files):
        from keras_vit.tasks.task import names_or_indices

        folder.mkdir()
        self.folder, self.task, self.files = folder, task, files
        self.names = names_or_indices(model.class_names, model.num_classes)
        self.near_is_high = getattr(model, "quantity", None) == "disparity"

    def write(self, path, image, prediction):
        """Draw what the `rows` of a task for pixels or objects give to `write`."""
        import numpy as np

        from keras_vit.inspection import box_overlay
        from keras_vit.inspection.label_pictures import labeled_picture
        from keras_vit.tasks import label_colors

        image, prediction = enlarged(image, prediction)
        if hasattr(prediction, "overlay"):
            self._write(path, prediction.overlay(image))
            return
        if hasattr(prediction, "boxes"):
            self._write(path, box_overlay(image, prediction, self.names))
            return
        name = self.task.label.name
        colors = label_colors()[name]([prediction], self.names) if name in label_colors() else {}
        if self.near_is_high:
            prediction = -prediction  # Of pictures of depth, what is near is bright.
        picture = labeled_picture(np.divide(image, 255, dtype="float32"), prediction, name)
        picture = np.multiply(picture, 255, out=picture).round(out=picture).astype("uint8")
        self._write(path, with_words(picture, [*colors], [*colors.values()]))

    def write_row(self, path, image, row):
        """Draw the row of a task for whole images."""
        self._write(path, with_words(enlarged(image)[0], lines_of(row)))

    def _write(self, path, picture):
        from keras_vit.preprocessing.image_files import image_bytes

        Folder.write(self.folder / self.files[path], image_bytes(picture))


def enlarged(image, prediction=None):
    """A small image and what is predicted of it, objects or a map, with a side of at least `SMALLEST` pixels.

    >>> import numpy as np
    >>> image, classes = enlarged(np.zeros((8, 100, 3), "uint8"), np.zeros((8, 100), int))
    >>> image.shape, classes.shape
    ((24, 300, 3), (24, 300))
    """
    factor = math.ceil(SMALLEST / max(image.shape[:2]))
    if factor == 1:
        return image, prediction

    def repeated(pixels, axis=0):
        return pixels.repeat(factor, axis=axis).repeat(factor, axis=axis + 1)

    if hasattr(prediction, "enlarged"):
        prediction = prediction.enlarged(factor)
    elif hasattr(prediction, "boxes"):
        prediction = prediction._replace(boxes=prediction.boxes * factor)
        if hasattr(prediction, "masks"):
            prediction = prediction._replace(masks=repeated(prediction.masks, 1))
    elif prediction is not None:
        prediction = repeated(prediction)
    return repeated(image), prediction


def lines_of(row):
    """The words for a row of classes or values.

    >>> lines_of({"classes": [{"name": "rose", "probability": 0.914}]}), lines_of({"values": [0.25, 3.0]})
    (['rose 91%'], ['0.25, 3'])
    """
    if "classes" in row:
        return [f"{best['name']} {best['probability']:.0%}" for best in row["classes"]]
    return [", ".join(f"{value:.4g}" for value in row["values"])]


def with_words(image, lines, colors=()):
    """An image, uint8 (height, width, 3), with lines of text below it, which are cut at its width.

    Args:
        image: The image.
        lines: Texts.
        colors: The color of each line, (red, green, blue) in [0, 1], of a square before it; empty for none.

    Example:
        >>> import numpy as np
        >>> with_words(np.zeros((200, 300, 3), "uint8"), ["a cat", "a dog"]).shape
        (232, 300, 3)
    """
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    from keras_vit.messages import printable

    height, width = image.shape[:2]
    size = max(12, width // 30)
    step = size + size // 3
    picture = Image.new("RGB", (width, height + step * len(lines)), PAPER)
    picture.paste(Image.fromarray(image))
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(size)
    tops = range(height, height + step * len(lines), step)
    left = size // 3 + step * bool(colors)
    for top, color in zip(tops, colors):
        corners = (size // 3, top + size // 6, size // 3 + size, top + size // 6 + size)
        draw.rectangle(corners, fill=tuple(round(255 * part) for part in color), outline=INK)
    for top, line in zip(tops, lines):
        draw.text((left, top), printable(line), fill=INK, font=font)
    return np.asarray(picture)
