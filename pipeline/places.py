"""Where the paths inside a dataset lead: relative to its folder, absolute, or URLs; never from a remote one to here."""

import os
import posixpath
from dataclasses import dataclass
from functools import cached_property

from pipeline.endings import words

REMOTE_SCHEMES = frozenset(words("http https s3 s3a gs gcs az abfs abfss adl hf"))


@dataclass(frozen=True)
class Place:
    """The dataset's folder: an absolute local path, or a URL."""

    root: str

    @cached_property
    def local(self) -> bool:
        return "://" not in self.root

    def locate(self, path: str, folder: str | None = None) -> str:
        """Where a row's path leads. Relative ones start from `folder`, else from the dataset's own.

        ValueError where it may not lead: from a remote dataset to this machine's disk or out of the dataset's folder,
        and to anything but files and common stores.
        """
        if "\0" in path:
            raise ValueError("the audio's path holds a null byte")
        if "://" in path:
            return self._url(path)
        if not self.local:
            return self._within(path, folder or self.root)
        if os.path.isabs(path):
            return path
        places = [os.path.normpath(os.path.join(start, path)) for start in (folder or self.root, self.root)]
        return next((place for place in places if os.path.exists(place)), places[0])

    def _url(self, path: str) -> str:
        scheme = path.split("://", 1)[0].lower()
        if scheme == "file" and self.local and "::" not in path:
            return path[len("file://") :]
        if scheme not in REMOTE_SCHEMES or "::" in path:
            raise ValueError(f"the audio's path {path!r} isn't followed: {scheme}:// is none of {_schemes(self.local)}")
        return path

    def _within(self, path: str, folder: str) -> str:
        inside = posixpath.normpath(path)
        if posixpath.isabs(path) or os.path.isabs(path) or inside == ".." or inside.startswith("../"):
            raise ValueError(
                f"the audio's path {path!r} isn't followed: the dataset is remote, and the path leads out of it"
            )
        return f"{folder.rstrip('/')}/{inside}"


def _schemes(local: bool) -> str:
    return ", ".join([*(["file"] if local else []), *sorted(REMOTE_SCHEMES)])
