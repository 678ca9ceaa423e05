"""The files of a dataset, local or remote: listed, opened, and compared with what the plan recorded of them.

What is in them is left to `formats`, which of them make up a dataset to `resolution`.
"""

import io
import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pipeline.errors import SourceError
from pipeline.records import Shard, SourceFile

T = TypeVar("T")
R = TypeVar("R")

REMOTE_THREADS = 32
LOCAL_THREADS = 4
VERSION_KEYS = ("ETag", "etag", "e_tag", "md5", "content_md5", "LastModified", "last_modified", "updated", "mtime")
PINNED_URL = re.compile(r"^hf://datasets/[^@]+@[0-9a-f]{40}/")  # names a commit: what is there never changes


def is_url(path: str) -> bool:
    return "://" in path


class SourceStream(io.RawIOBase):
    """A file being read; `failure` keeps an error of disk or network apart from those of a reader about the content."""

    def __init__(self, raw: Any, url: str):
        super().__init__()
        self._raw = raw
        self.url = url
        self.failure: Exception | None = None

    def _try(self, call: Callable[..., R], *args: Any) -> R:
        try:
            return call(*args)
        except ValueError:  # a seek to a negative place: the reader's mistake, so the content's
            raise
        except Exception as error:
            self.failure = error
            raise

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._try(self._raw.read, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        return self._try(self._raw.read, size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._try(self._raw.seek, offset, whence)

    def tell(self) -> int:
        return self._raw.tell()

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()

    def check(self) -> None:
        """SourceError where the disk or the network failed, so that the shard is tried again and no row is blamed."""
        if self.failure is not None:
            raise SourceError(f"{self.url}: can't be read now: {describe(self.failure)}") from self.failure


def describe(error: BaseException) -> str:
    """An error's text on one line, with its type where the text alone says little."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def open_file(url: str) -> SourceStream:
    """The file, opened for reading bytes anywhere in it. SourceError where that can't be done."""
    try:
        if not is_url(url):
            return SourceStream(open(url, "rb", buffering=0), url)
        from fsspec.core import url_to_fs

        filesystem, path = url_to_fs(url)
        return SourceStream(filesystem.open(path, "rb"), url)
    except FileNotFoundError as error:
        raise SourceError(f"{url}: the file is gone; put it back, or plan a new run without it") from error
    except Exception as error:
        raise SourceError(f"{url}: can't be opened: {describe(error)}") from error


def version_of(info: dict[str, Any]) -> str | None:
    """What a store says of a file's content: its etag, else the time of its last change."""
    return next((str(info[key]) for key in VERSION_KEYS if info.get(key) is not None), None)


def stat_file(url: str) -> SourceFile:
    """The file as it is now; a link that leads nowhere stands for itself, since reading it says why.

    FileNotFoundError, or the store's own error, where that can't be known.
    """
    if not is_url(url):
        facts = os.lstat(url) if os.path.islink(url) and not os.path.exists(url) else os.stat(url)
        return SourceFile(url, facts.st_size, str(facts.st_mtime_ns))
    from fsspec.core import url_to_fs

    filesystem, path = url_to_fs(url)
    pinned = PINNED_URL.match(url) is not None
    if not pinned:
        filesystem.invalidate_cache(path)
    info = filesystem.info(path)
    return SourceFile(url, info.get("size"), None if pinned else version_of(info))


def stat_files(urls: list[str]) -> list[SourceFile]:
    """As `stat_file`, many at once. SourceError naming the first file that can't be found."""

    def one(url: str) -> SourceFile:
        try:
            return stat_file(url)
        except Exception as error:
            raise SourceError(f"{url}: can't be found: {describe(error)}") from error

    return in_threads(one, urls)


def in_threads(call: Callable[[T], R], items: list[T], remote: bool | None = None) -> list[R]:
    """`call` for each item, in order; in threads where there is enough to do for them."""
    if len(items) < 8:
        return [call(item) for item in items]
    if remote is None:
        remote = isinstance(items[0], str) and is_url(items[0])
    threads = REMOTE_THREADS if remote else LOCAL_THREADS
    size = max(1, len(items) // (8 * threads))  # items a task: handing out one costs more than a stat
    parts = [items[i : i + size] for i in range(0, len(items), size)]
    with ThreadPoolExecutor(threads) as pool:
        done = pool.map(lambda part: [call(item) for item in part], parts)
        return [result for part in done for result in part]


def list_files(root: str) -> list[SourceFile]:
    """Every file under a folder or URL prefix but hidden ones and those in `__special__` folders, sorted by name.

    SourceError where the place can't be listed, or a name in it isn't text.
    """
    files = sorted(_list_remote(root) if is_url(root) else _list_local(root), key=lambda file: file.url)
    for file in files:
        if not file.url.isascii() and any("\ud800" <= letter <= "\udfff" for letter in file.url):
            raise SourceError(f"{file.url!a}: the file's name isn't UTF-8; rename it")
    return files


def full_url(root: str) -> str:
    """A local path as it is; a URL in the spelling that its store lists files under."""
    if not is_url(root):
        return root
    from fsspec.core import url_to_fs

    try:
        filesystem, path = url_to_fs(root)
    except (ImportError, ValueError) as error:
        raise SourceError(f"{root}: can't be read: {describe(error)}") from error
    return filesystem.unstrip_protocol(path).rstrip("/")


def _list_local(root: str) -> list[SourceFile]:
    found: list[SourceFile] = []
    pending, seen = [root], {os.path.realpath(root)}
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except OSError as error:
            raise SourceError(f"{error.filename}: can't be listed: {error.strerror}") from error
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if _is_dir(entry):
                real = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
                if not entry.name.startswith("__") and real not in seen:  # a link may lead back up
                    seen.add(real)
                    pending.append(entry.path)
            elif (facts := _facts_of(entry)) is not None:
                found.append(SourceFile(entry.path, facts.st_size, str(facts.st_mtime_ns)))
    return found


def _is_dir(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _facts_of(entry: "os.DirEntry[str]") -> os.stat_result | None:
    """Of a regular file; of a link that leads nowhere, the link's own, so that its row says so. None of the rest."""
    try:
        if entry.is_file():
            return entry.stat()
    except OSError:
        pass
    broken = entry.is_symlink() and not os.path.exists(entry.path)
    return entry.stat(follow_symlinks=False) if broken else None


def _list_remote(root: str) -> list[SourceFile]:
    from fsspec.core import url_to_fs

    try:
        filesystem, path = url_to_fs(root)
        infos = filesystem.find(path, detail=True)
    except Exception as error:
        raise SourceError(f"{root}: can't be listed: {describe(error)}") from error
    pinned = PINNED_URL.match(root + "/") is not None
    found = []
    for name, info in infos.items():
        parts = name[len(path) :].strip("/").split("/")
        hidden = any(part.startswith(".") for part in parts) or any(part.startswith("__") for part in parts[:-1])
        if info.get("type", "file") == "file" and not hidden:
            url = name if is_url(name) else filesystem.unstrip_protocol(name)
            found.append(SourceFile(url, info.get("size"), None if pinned else version_of(info)))
    return found


def change_of(file: SourceFile) -> str | None:
    """How the file differs from what the plan recorded, or None. SourceError where its state can't be known."""
    if (file.size is None and file.version is None) or PINNED_URL.match(file.url):
        return None
    try:
        now = stat_file(file.url)
    except FileNotFoundError:
        return f"{file.url}: gone since the run was planned"
    except Exception as error:
        raise SourceError(f"{file.url}: can't be looked at: {describe(error)}") from error
    if file.size is not None and now.size is not None and file.size != now.size:
        return f"{file.url}: changed since the run was planned ({file.size} bytes then, {now.size} now)"
    if file.version is not None and now.version is not None and file.version != now.version:
        return f"{file.url}: changed since the run was planned ({file.size} bytes as then, but written anew)"
    return None


def changed_files(shards: Shard | Iterable[Shard]) -> list[str]:
    """One line for each file that isn't what the plan recorded, by size and by modification time or etag."""
    each = [shards] if isinstance(shards, Shard) else shards
    files = list({file.url: file for shard in each for file in shard.files}.values())
    remote = bool(files) and is_url(files[0].url)
    return [change for change in in_threads(change_of, files, remote) if change is not None]
