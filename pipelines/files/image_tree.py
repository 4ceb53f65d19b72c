"""Images in folders whose names are their labels, as in `photos/cat/1.jpg`: found, numbered, and read as records.

A file below a class's folder is a record of two fields, the image and the folder's name, and is judged as any record.
The images are numbered by a hash of their names: so any stretch of them has images of all classes, the same on every
run. Loads no TensorFlow.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from millrace.consumers.errors import ConfigError
from millrace.pipelines.schema import Schema

IMAGE, LABEL = "image", "label"
"""The fields of such a record."""
_MOST_BYTES = 256 << 20
"""Of a longer file this is read, which is no image that is whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTree:
    """The images below a folder."""

    root: Path
    names: tuple[str, ...]
    """Of the images by their numbers, as in `cat/1.jpg`."""

    def record(self, number: int) -> tuple[bytes, bytes]:
        """Return an image as it is in its file, and the name of its folder. Raise ConfigError if it cannot be read."""
        name = self.names[number]
        try:
            with (self.root / name).open("rb") as file:
                return file.read(_MOST_BYTES), os.fsencode(name.partition("/")[0])
        except OSError as error:
            raise ConfigError(f"{self.root / name} cannot be read: {error.strerror}") from error

    def sha256(self, first: int, end: int) -> str:
        """Return the hash of some images and their names."""
        digest = hashlib.sha256()
        for number in range(first, end):
            image, _ = self.record(number)
            digest.update(hashlib.sha256(image).digest() + os.fsencode(self.names[number]) + b"\n")
        return digest.hexdigest()

    def schema(self, schema: Schema) -> Schema:
        """Return how these records are read into the columns of a schema. Raise ConfigError if they lack one."""
        (image, *others), labels = schema.features, schema.labels
        if image.image is None or others:
            other = (others or [image])[0].name
            raise ConfigError(
                f"records.features: {self.root} has images, and {other!r} is another feature: name the image alone"
            )
        if len(labels) > 1 or schema.weight is not None:
            raise ConfigError(
                f"records: {self.root} has images and names of folders, and no other label, and no weight"
            )
        folders = sorted({name.partition("/")[0] for name in self.names})
        for label in (label.as_read for label in labels):
            if label.dtype != "string" or label.shape:
                raise ConfigError(
                    f"records.label: {label.name!r} is no text, and a folder's name is: write "
                    f"one_of: [{', '.join(folders)}]"
                )
            if unknown := [folder for folder in folders if label.one_of is not None and folder not in label.one_of]:
                raise ConfigError(
                    f"records.label: the folder {self.root / unknown[0]} is none of its one_of: add it there, or take "
                    "the folder away"
                )
        return replace(
            schema,
            features=(replace(image, source=IMAGE, image="bytes"),),
            labels=tuple(replace(label, source=LABEL) for label in labels),
            event_time=None,
        )


def image_tree(root: Path) -> ImageTree:
    """Return the images below a folder, hidden files left out. Raise ConfigError if there are none."""
    names = sorted(_files(root), key=lambda name: hashlib.sha256(os.fsencode(name)).digest())
    if not names:
        raise ConfigError(f"{root} has no folders with images; write them as {root / 'cat' / '1.jpg'}")
    if lone := [name for name in names if "/" not in name]:
        raise ConfigError(f"{root / lone[0]} lies in no folder, whose name would be its label; move it to one")
    return ImageTree(root=root, names=tuple(names))


def _files(root: Path) -> Iterator[str]:
    def unreadable(error: OSError) -> None:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error

    for here, folders, files in os.walk(root, onerror=unreadable, followlinks=True):
        folder = Path(here)
        folders[:] = [name for name in folders if not name.startswith(".")]
        for link in [folder / name for name in folders if (folder / name).is_symlink()]:
            # Otherwise the images below would be found again and again.
            if link.resolve() in {one.resolve() for one in (folder, *folder.parents)}:
                raise ConfigError(f"{link} leads back to {link.resolve()}, in which it lies; remove the link")
        for path in [folder / name for name in files if not name.startswith(".")]:
            if not path.is_file():  # to read a pipe would wait for ever
                raise ConfigError(f"{path} is no file that can be read: a pipe, a socket or a broken link; remove it")
            yield path.relative_to(root).as_posix()
