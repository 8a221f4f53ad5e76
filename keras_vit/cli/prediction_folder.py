"""What the folders of predictions share."""

from keras_vit.tasks import prediction_folders


class Folder:
    """A folder with what a model predicts for each image.

    Attributes:
        option: The option of `predict` that names it: "maps" of what has a value for each pixel, or "boxes".
        task: The task of the models whose predictions it has.
        options: The names of further options, which need it.
        row_options: The names of further options of the task, which change the predictions themselves.
        key: Of a list in the predictions of an image, which are no classes; None of classes.
        columns: What a table has of each of them beside its name.
    """

    option = task = key = None
    options = row_options = columns = ()

    def add_arguments(self, add):
        """Add the further options to a parser, by its `add_argument`."""

    def check(self, args):
        """Raise ValueError for further options that do not fit together."""

    def check_rows(self, args):
        """As `check`, of the options that change the predictions."""

    def row_arguments(self, args, paths):
        """The arguments of the task's `rows` for the options that change the predictions, which need Keras.

        Args:
            args: The arguments of `predict`.
            paths: Of all images.
        """
        return {}

    def table_rows(self, values):
        """The rows of a table for the list of an image: dicts of a name and the columns."""
        return values

    def writer(self, folder, model, files, args):
        """Begin a new folder.

        Args:
            folder: pathlib.Path, which does not exist.
            model: A live or an exported one.
            files: dict from the path of an image to the relative path of a PNG file.
            args: The arguments of `predict`.

        Returns:
            A function that writes the path of an image, the image, uint8 (height, width, 3), and its
            prediction, what the `rows` of the task give to `write`.
        """
        raise NotImplementedError

    @staticmethod
    def write(path, content):
        """Write bytes to a file whose folder may not exist yet."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def folders_of(task):
    """The folders of a task's models, by the option that names them.

    >>> [*folders_of("detection")]
    ['boxes']
    """
    return {folder.option: folder for folder in prediction_folders() if folder.task == task}
