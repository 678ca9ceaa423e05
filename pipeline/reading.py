"""Files as the decoders want them: opened without ever blocking, seen through a window that keeps errors for later.

What the bytes mean is left to `containers`; words about the recording to `audio`.
"""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from pipeline.errors import AudioError, SourceError

COPY_BYTES = 1 << 20
# The path is at fault. Anything else (EIO, EMFILE, ESTALE, a timeout) is the machine's or the network's, and may pass.
PATH_ERRNOS = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
    | {errno.EINVAL, errno.ENXIO, errno.ENODEV, errno.EILSEQ}
)
KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a fifo", stat.S_IFSOCK: "a socket"}


class Window:
    """Bytes [start, stop) of a seekable file, some of them replaced and `head` before them, as a file of its own.

    Decoders call it from C, where an exception would be printed and lost: a failed read is kept in `error` and looks
    like the end of the file. It has no `name`, so that no decoder can be led by an extension.
    """

    def __init__(
        self, base: BinaryIO, start: int, stop: int, patch: tuple[tuple[int, bytes], ...] = (), head: bytes = b""
    ):
        self.error: Exception | None = None
        self._base, self._patch, self._head = base, patch, head
        self._start, self._size = start - len(head), stop - start + len(head)
        self._position = 0
        # From this byte of the file on, its own bytes are what is read; earlier, some may be replaced.
        self._plain_from = max([start, *(at + len(new) for at, new in patch)])

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._position)
        size = left if size < 0 else min(size, left)
        if not size or self.error is not None:
            return b""
        if self._position < len(self._head):
            data = self._head[self._position : self._position + size]
            self._position += len(data)
            return data
        at = self._start + self._position
        try:
            self._base.seek(at)
            data = self._base.read(size)
        except Exception as error:  # noqa: BLE001 (the caller is C; fsspec's backends raise types of their own)
            self.error = error
            return b""
        self._position += len(data)
        return self._patched(data, at) if self._patch else data

    def readinto(self, buffer: Any) -> int:
        at = self._start + self._position
        if at >= self._plain_from and self.error is None:
            size = min(len(buffer), self._size - self._position)
            try:
                self._base.seek(at)
                count = self._base.readinto(memoryview(buffer)[:size]) if size > 0 else 0  # pyright: ignore
            except Exception as error:  # noqa: BLE001 (as in `read`)
                self.error = error
                return 0
            self._position += count
            return count
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def at(self, offset: int, size: int) -> bytes:
        """`size` bytes at `offset` of the window, fewer at its end. For reading headers: raises SourceError."""
        self.seek(offset)
        data = self.read(size)
        self.check()
        return data

    def part(self, start: int, stop: int) -> "Window":
        """Bytes [start, stop) of this window as a window."""
        return Window(self._base, self._start + start, self._start + stop)

    def is_all_of(self, size: int) -> bool:
        """Whether this shows a file of `size` bytes as it is."""
        return self._start == 0 and self._size == size and not self._patch and not self._head

    @property
    def size(self) -> int:
        return self._size

    def check(self) -> None:
        """Raises SourceError if a read failed."""
        if self.error is not None:
            raise SourceError(f"reading failed: {one_line(self.error)}") from self.error

    def _patched(self, data: bytes, at: int) -> bytes:
        for offset, new in self._patch:
            low, high = max(offset, at), min(offset + len(new), at + len(data))
            if low < high:
                data = data[: low - at] + new[low - offset : high - offset] + data[high - at :]
        return data


def one_line(error: BaseException) -> str:
    """An error's type and text, without line breaks or an endless tail."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def open_path(path: str, open_file: Callable[[str], BinaryIO] | None) -> tuple[BinaryIO, int]:
    """A seekable file and its size in bytes, from an absolute local path or an fsspec URL.

    `open_file` opens the URLs; without it fsspec does. Raises AudioError `unreadable` where the path is at fault,
    SourceError where trying again may help.
    """
    if path.startswith("file://"):
        path = unquote(urlsplit(path).path)
    if "://" in path or "::" in path:
        return _open_remote(path, open_file or _open_url)
    try:
        return _open_local(path)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in PATH_ERRNOS:
            raise SourceError(f"{path!r} can't be read: {one_line(error)}") from error
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise AudioError("unreadable", f"{path!r} can't be opened: {reason}") from error


def _open_local(path: str) -> tuple[BinaryIO, int]:
    mode = os.stat(path).st_mode  # before opening: that alone may wait for a fifo's writer or move a tape
    if not stat.S_ISREG(mode):
        raise AudioError("unreadable", f"{path!r} is {KINDS.get(stat.S_IFMT(mode), 'a device')}, not a file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return os.fdopen(descriptor, "rb"), os.fstat(descriptor).st_size


def _open_url(url: str) -> BinaryIO:
    import fsspec

    return fsspec.open(url, "rb").open()  # pyright: ignore[reportReturnType, reportAttributeAccessIssue]


def _open_remote(url: str, open_file: Callable[[str], BinaryIO]) -> tuple[BinaryIO, int]:
    try:
        file = open_file(url)
        try:
            return file, file.seek(0, os.SEEK_END)
        except ValueError:  # a server without byte ranges: the decoders seek, so a copy on disk has to do
            return _spooled(file)
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise AudioError("unreadable", f"{url!r} can't be opened: {one_line(error)}") from error
    except ValueError as error:
        raise AudioError("unreadable", f"{url!r} is no URL that can be read: {one_line(error)}") from error
    except Exception as error:  # fsspec's backends raise types of their own (aiohttp's, botocore's)
        raise SourceError(f"{url!r} can't be read: {one_line(error)}") from error


def _spooled(file: BinaryIO) -> tuple[BinaryIO, int]:
    copy = tempfile.TemporaryFile()  # noqa: SIM115 (the stream that gets it closes it)
    try:
        with file:
            shutil.copyfileobj(file, copy, COPY_BYTES)
        return copy, copy.tell()  # pyright: ignore[reportReturnType]
    except BaseException:
        copy.close()
        raise
