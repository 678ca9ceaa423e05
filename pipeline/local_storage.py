"""A run directory in a folder of a local or network file system: temporary names, fsync, rename."""

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pipeline.errors import RunDirError
from pipeline.storage import TEMPORARIES, Entry, Sink, Storage

T = TypeVar("T")

NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV})


class LocalStorage(Storage):
    """A folder of a local or network file system."""

    def __init__(self, root: str):
        self.root = os.path.abspath(os.path.expanduser(root))

    def path(self, name: str) -> str:
        return os.path.join(self.root, name) if name else self.root

    def read_bytes(self, name: str) -> bytes:
        def read() -> bytes:
            with open(self.path(name), "rb") as file:
                return file.read()

        return self.attempt("read", name, read)

    @contextmanager
    def open_staged(self, name: str, durable: bool = True) -> Iterator[Sink]:
        temporary = f"{TEMPORARIES}/{secrets.token_hex(8)}"
        descriptor = self._writing(name, lambda: self._open_new(temporary))
        sink = Sink(descriptor)
        try:
            try:
                yield sink
                self._writing(name, lambda: sink.finish(durable))
            except Exception as error:
                if sink.error is None or isinstance(error, RunDirError):
                    raise
                raise self.wrong("write", name, sink.error) from error  # the cause, not what a library made of it
            finally:
                os.close(descriptor)
            self._writing(name, lambda: self._move(temporary, name, durable))
        except BaseException:
            self._discard(temporary)
            raise

    def create_exclusive(self, name: str, data: bytes) -> bool:
        temporary = f"{TEMPORARIES}/{secrets.token_hex(8)}"
        self.write_bytes_atomic(temporary, data)
        try:
            return self._writing(name, lambda: self._link(temporary, name, data))
        finally:
            self._discard(temporary)

    def size(self, name: str) -> int | None:
        try:
            return self.attempt("read", name, lambda: os.stat(self.path(name)).st_size)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, name: str = "") -> list[Entry]:
        def scan() -> list[Entry]:
            found = []
            with os.scandir(self.path(name)) as entries:
                for entry in entries:
                    try:
                        stat = entry.stat()
                    except FileNotFoundError:  # gone meanwhile, or a link to nothing
                        continue
                    version = f"{stat.st_mtime_ns}-{stat.st_ino}"
                    found.append(Entry(entry.name, stat.st_size, version, entry.is_dir()))
            return sorted(found)

        try:
            return self.attempt("list", name, scan)
        except FileNotFoundError:
            return []

    def rename(self, source: str, target: str) -> None:
        if not os.path.lexists(self.path(source)):
            raise FileNotFoundError(errno.ENOENT, "no such file", self.path(source))
        self._writing(target, lambda: self._move(source, target, True))

    def remove(self, name: str) -> None:
        def unlink() -> None:
            os.unlink(self.path(name))
            sync_folder(os.path.dirname(self.path(name)))

        try:
            self.attempt("remove", name, unlink)
        except FileNotFoundError:
            return

    def remove_tree(self, name: str) -> None:
        try:
            self.attempt("remove", name, lambda: shutil.rmtree(self.path(name)))
        except FileNotFoundError:
            return

    def local_copy(self, name: str, folder: Path) -> Path:
        return Path(self.path(name))

    def _writing(self, name: str, function: Callable[[], T]) -> T:
        try:
            return self.attempt("write", name, function)
        except (FileNotFoundError, FileExistsError) as error:
            raise RunDirError(f"{self.join(name)}: can't write: its folder was taken away meanwhile") from error

    def _open_new(self, name: str) -> int:
        make_folder(os.path.dirname(self.path(name)))
        return os.open(self.path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def _move(self, source: str, target: str, durable: bool) -> None:
        folder = os.path.dirname(self.path(target))
        make_folder(folder)
        os.replace(self.path(source), self.path(target))
        if durable:
            sync_folder(folder)

    def _link(self, source: str, target: str, data: bytes) -> bool:
        make_folder(os.path.dirname(self.path(target)))
        try:
            os.link(self.path(source), self.path(target))
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            return self._create(target, data)
        sync_folder(os.path.dirname(self.path(target)))
        return True

    def _create(self, name: str, data: bytes) -> bool:
        """For file systems without hard links: exclusive as well, but a reader may catch it while it's empty."""
        try:
            descriptor = os.open(self.path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            return False
        try:
            os.write(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return True

    def _discard(self, name: str) -> None:
        try:
            os.unlink(self.path(name))
        except OSError:  # it lies where nobody looks, and is swept when the run is next opened
            return


def make_folder(path: str) -> None:
    """Make a folder and those above it, each durable in the one above."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o777)
        except FileExistsError:  # another process was faster, or it's a file
            if not os.path.isdir(folder):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from None
        sync_folder(os.path.dirname(folder))


def sync_folder(path: str) -> None:
    """Make the names in a folder durable; some network file systems can't, and say so with EINVAL."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
