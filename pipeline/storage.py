"""Where a run directory lies, behind a few verbs: `local_storage.py` is a folder, `object_storage.py` a bucket.

Every write is whole or absent, and durable when it returns. What the files mean is left to `run_dir.py`, `writer.py`.
"""

import errno
import hashlib
import io
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pipeline.errors import RunDirError

T = TypeVar("T")

TEMPORARIES = "_state/tmp"  # beside nothing that a reader globs; whatever lies here is nobody's
WRITE_BUFFER = 1 << 20  # bytes
RETRY_DELAYS_S = (0.5, 2.0, 8.0)  # four tries in all

REMEDIES = {
    errno.ENOSPC: "no space left: free some, then run `mimi-jobs resume`",
    errno.EDQUOT: "the disk quota is used up: free some space, then run `mimi-jobs resume`",
    errno.EACCES: "permission denied: choose an output.path that this user may write to",
    errno.EPERM: "operation not permitted: choose an output.path that this user may write to",
    errno.EROFS: "the file system is read-only: choose an output.path that can be written to",
    errno.ENAMETOOLONG: "the name is too long: choose a shorter output.path",
    errno.ENOTDIR: "a part of the path is a file, not a folder: choose another output.path",
    errno.EISDIR: "a folder stands where a file belongs: move it away",
    errno.ELOOP: "a symbolic link leads back to itself: choose another output.path",
}
TRANSIENT = frozenset(  # what a network file system says while its server is away
    {errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET, errno.EREMOTEIO}
)


class Entry(NamedTuple):  # a tuple because a listing may have 100,000
    """One name in a folder. `version` differs whenever the content was written anew."""

    name: str
    size: int
    version: str
    is_dir: bool


class Sink(io.RawIOBase):
    """A binary file being written front to back; counts and hashes what goes through it.

    After a failed write it swallows what follows, so that a Parquet or Arrow writer can be closed quietly; the failure
    is kept in `error` and raised where the file would be finished.
    """

    def __init__(self, descriptor: int):
        super().__init__()
        self._descriptor = descriptor
        self._buffer = bytearray()
        self._hash = hashlib.sha256()
        self.num_bytes = 0
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.num_bytes

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.num_bytes += len(view)
        if self.error is None:
            self._hash.update(view)
            self._buffer += view
            if len(self._buffer) >= WRITE_BUFFER:
                self._drain()
        return len(view)

    def finish(self, durable: bool) -> None:
        """Bring everything to the disk, or raise the first thing that went wrong."""
        if self.error is None:
            self._drain()
        if self.error is not None:
            raise self.error
        if durable:
            os.fsync(self._descriptor)

    def sha256(self) -> str:
        return self._hash.hexdigest()

    def _drain(self) -> None:
        view = memoryview(bytes(self._buffer))
        self._buffer.clear()
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            self.error = error
            raise


class Storage(ABC):
    """The verbs. Names are relative to the root, with `/` between parts.

    Reading what isn't there raises FileNotFoundError; everything else that goes wrong is a RunDirError of one line,
    after a bounded number of tries where trying again can help.
    """

    failures: tuple[type[Exception], ...] = (OSError,)
    delays: tuple[float, ...] = RETRY_DELAYS_S
    sleep: Callable[[float], None] = staticmethod(time.sleep)
    atomic_create = True  # whether `create_exclusive` can be relied on alone
    root: str

    @staticmethod
    def at(path: str | os.PathLike[str], storage_options: dict[str, Any] | None = None) -> "Storage":
        """The storage at a local path or an fsspec URL; touches nothing. RunDirError where no run can be kept."""
        path = os.fspath(path)
        scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", path)
        if scheme is None or scheme[1].lower() in ("file", "local"):
            from pipeline.local_storage import LocalStorage

            return LocalStorage(path[scheme.end() :] if scheme else path)
        from pipeline.object_storage import ObjectStorage

        return ObjectStorage(path, storage_options or {})

    def join(self, *names: str) -> str:
        """The full path or URL of a name, as the user knows it."""
        return "/".join([self.root.rstrip("/"), *names]) if any(names) else self.root

    @abstractmethod
    def read_bytes(self, name: str) -> bytes: ...

    @abstractmethod
    def open_staged(self, name: str, durable: bool = True) -> AbstractContextManager[Sink]:
        """A Sink whose content becomes the file `name` when the block ends, and nothing at all when it raises."""

    def write_bytes_atomic(self, name: str, data: bytes, durable: bool = True) -> None:
        with self.open_staged(name, durable) as sink:
            sink.write(data)

    @abstractmethod
    def create_exclusive(self, name: str, data: bytes) -> bool:
        """Write `name` if nothing is there; False if something is. At most one of several callers gets True."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes of a file; None if it isn't there."""

    def exists(self, name: str) -> bool:
        return self.size(name) is not None

    @abstractmethod
    def list(self, name: str = "") -> list[Entry]:
        """What is directly in a folder, by name; nothing if the folder isn't there."""

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Move a file over whatever has the target's name, durably. FileNotFoundError if there's no source."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file if it's there, durably."""

    @abstractmethod
    def remove_tree(self, name: str) -> None:
        """Remove a folder and all in it if it's there."""

    @abstractmethod
    def local_copy(self, name: str, folder: Path) -> Path:
        """A local file with the content: the file itself where it is local, otherwise downloaded into `folder`."""

    def transient(self, error: Exception) -> bool:
        return isinstance(error, OSError) and error.errno in TRANSIENT

    def describe(self, error: Exception) -> str:
        """What went wrong and what to do, on one line."""
        if isinstance(error, OSError) and error.errno in REMEDIES:
            return REMEDIES[error.errno]
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return " ".join((text or type(error).__name__).split())

    def wrong(self, doing: str, name: str, error: Exception) -> RunDirError:
        return RunDirError(f"{self.join(name)}: can't {doing}: {self.describe(error)}")

    def attempt(self, doing: str, name: str, function: Callable[[], T]) -> T:
        """Call the function, again where the failure may pass. FileNotFoundError and FileExistsError go through."""
        tries = 0
        while True:
            try:
                return function()
            except (FileNotFoundError, FileExistsError):
                raise
            except self.failures as error:
                if tries >= len(self.delays) or not self.transient(error):
                    after = f" after {tries + 1} tries" if tries else ""
                    raise self.wrong(doing + after, name, error) from error
            self.sleep(self.delays[tries])
            tries += 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"
