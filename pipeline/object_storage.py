"""A run directory in an object store, through fsspec: S3, Google Cloud Storage, Azure.

A PUT is atomic there and a rename is a copy and a delete on the server. Nothing is written through `fs.open`, which
uploads what it has when the block raises: files are made whole on the local disk, then sent.
"""

import contextlib
import errno
import importlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import RunDirError
from pipeline.storage import Entry, Sink, Storage

CHOICES = "choose a local path, s3://, gs:// or az://"
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
TRANSPORT_ERRORS = (  # what the libraries below fsspec raise without making an OSError of it
    "aiohttp.ClientError",
    "botocore.exceptions.BotoCoreError",
    "botocore.exceptions.ClientError",
    "gcsfs.retry.HttpError",
    "google.auth.exceptions.GoogleAuthError",
    "azure.core.exceptions.AzureError",
)
PERMANENT = frozenset(
    {errno.EINVAL, errno.EACCES, errno.EPERM, errno.ENOSYS, errno.ENAMETOOLONG, errno.EMSGSIZE, errno.ENOSPC}
    | {errno.EDQUOT, errno.EROFS, errno.ENOTDIR, errno.EISDIR, getattr(errno, "EREMCHG", errno.ENOENT)}
)
PERMANENT_NAMES = re.compile(r"Credential|Profile|Token|Param|UnknownService|Endpoint(?!Connection)|Auth|Forbidden")
BOTO = {"connect_timeout": 10, "read_timeout": 60, "retries": {"total_max_attempts": 1}}
SECRET = re.compile(r"secret|key|token|password|credential|conn|sas|auth", re.IGNORECASE)


class ObjectStorage(Storage):
    """A prefix of a bucket. The filesystem is built in each process when first needed: s3fs doesn't survive a fork."""

    delays = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    atomic_create = False  # S3 itself can; stores that speak its language may ignore the condition

    def __init__(self, url: str, options: dict[str, Any]):
        scheme, _, rest = url.partition("://")
        shown = re.sub(r"//[^/@]*:[^/@]*@", "//***@", url)
        if shown != url:
            raise RunDirError(f"{shown}: has a password in it: give credentials by the environment instead")
        if scheme == "memory":
            raise RunDirError(f"{url}: memory:// isn't shared between processes: {CHOICES}")
        if scheme == "hf":
            raise RunDirError(f"{url}: each file would be a commit to the hub: {CHOICES}")
        if scheme not in EXTRAS:
            raise RunDirError(f"{url}: {scheme}:// can't hold a run: {CHOICES}")
        if not rest.strip("/"):
            raise RunDirError(f"{url}: names no bucket: give {scheme}://BUCKET/FOLDER")
        self.root = url.rstrip("/")
        self._scheme, self._options = scheme, options
        self._built: tuple[int, Any, str, tuple[type[Exception], ...]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStorage, (self.root, self._options)

    @property
    def failures(self) -> tuple[type[Exception], ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._build()[3]

    def read_bytes(self, name: str) -> bytes:
        return self.attempt("read", name, lambda: self._fs.cat_file(self._path(name)))

    @contextmanager
    def open_staged(self, name: str, durable: bool = True) -> Iterator[Sink]:
        del durable  # a PUT always is
        with _local_file() as path:
            descriptor = os.open(path, os.O_WRONLY)
            sink = Sink(descriptor)
            try:
                yield sink
                sink.finish(durable=False)
            except Exception as error:
                if sink.error is None or isinstance(error, RunDirError):
                    raise
                where = f"{Path(path).parent}: can't hold a file on its way to {self.join(name)}"
                raise RunDirError(f"{where}: {self.describe(sink.error)}") from error
            finally:
                os.close(descriptor)
            self._writing(name, lambda: self._fs.put_file(path, self._path(name)))

    def write_bytes_atomic(self, name: str, data: bytes, durable: bool = True) -> None:
        self._writing(name, lambda: self._fs.pipe_file(self._path(name), data))

    def create_exclusive(self, name: str, data: bytes) -> bool:
        if self.size(name) is not None:
            return False
        with contextlib.suppress(FileExistsError):  # perhaps from our own try, whose answer was lost
            self._writing(name, lambda: self._fs.pipe_file(self._path(name), data, mode="create"), exclusive=True)
        return self.read_bytes(name) == data

    def size(self, name: str) -> int | None:
        try:
            return self.attempt("read", name, lambda: self._fs.info(self._path(name))["size"])
        except FileNotFoundError:
            return None

    def list(self, name: str = "") -> list[Entry]:
        path = self._path(name)

        def listing() -> list[Entry]:
            self._fs.invalidate_cache()
            entries = [_entry(info) for info in self._fs.ls(path, detail=True)]
            return sorted((entry for entry in entries if entry.name), key=lambda entry: entry.name)

        try:
            return self.attempt("list", name, listing)
        except FileNotFoundError:
            return []

    def rename(self, source: str, target: str) -> None:
        self.attempt("write", target, lambda: self._fs.cp_file(self._path(source), self._path(target)))
        self.remove(source)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.attempt("remove", name, lambda: self._fs.rm_file(self._path(name)))

    def remove_tree(self, name: str) -> None:
        for entry in self.list(name):
            inner = f"{name}/{entry.name}"
            self.remove_tree(inner) if entry.is_dir else self.remove(inner)

    def local_copy(self, name: str, folder: Path) -> Path:
        path = folder / name.replace("/", "+")
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            self.attempt("read", name, lambda: self._fs.get_file(self._path(name), str(partial)))
            partial.rename(path)
        return path

    def transient(self, error: Exception) -> bool:
        if isinstance(error, PermissionError) or PERMANENT_NAMES.search(type(error).__name__):
            return False
        return not isinstance(error, OSError) or error.errno not in PERMANENT

    def describe(self, error: Exception) -> str:
        if isinstance(error, PermissionError):
            text = f"permission denied ({super().describe(error)}): check the credentials in the environment"
        elif "Credential" in type(error).__name__:
            text = f"{super().describe(error)}: give credentials by the environment"
        else:
            text = super().describe(error)
        for value in _secrets(self._options):
            text = text.replace(value, "***")
        return text

    def _writing(self, name: str, function: Callable[[], Any], exclusive: bool = False) -> None:
        try:
            self.attempt("write", name, function)
        except FileNotFoundError as error:
            raise RunDirError(f"{self.join(name)}: can't write: there's no such bucket; make it first") from error
        except FileExistsError as error:
            if exclusive:
                raise
            raise self.wrong("write", name, error) from error

    def _path(self, name: str) -> str:
        base = self._build()[2]
        return f"{base}/{name}" if name else base

    @property
    def _fs(self) -> Any:
        return self._build()[1]

    def _build(self) -> tuple[int, Any, str, tuple[type[Exception], ...]]:
        if self._built is None or self._built[0] != os.getpid():
            from fsspec.core import url_to_fs

            options = {**self._options, "use_listings_cache": False, "skip_instance_cache": True}
            if self._scheme in ("s3", "s3a"):
                given = options.get("config_kwargs") or {}
                options["config_kwargs"] = {**BOTO, **given}
            try:
                fs, path = url_to_fs(self.root, **options)
            except ImportError as error:
                extra = EXTRAS[self._scheme]
                raise RunDirError(f"{self.root}: needs an extra: pip install 'mimi-jobs[{extra}]'") from error
            except (ValueError, TypeError) as error:
                raise RunDirError(f"{self.root}: storage_options don't fit: {self.describe(error)}") from error
            if self._scheme in ("s3", "s3a"):
                fs.retries = 1  # tries are counted here: three layers of them would take an hour to give up
            self._built = os.getpid(), fs, path.rstrip("/"), (OSError, *_transport_errors())
        return self._built


@contextmanager
def _local_file() -> Iterator[str]:
    with tempfile.NamedTemporaryFile(prefix="mimi-jobs-") as file:
        yield file.name


def _entry(info: dict[str, Any]) -> Entry:
    version = next((info[key] for key in ("ETag", "etag", "generation", "updated") if info.get(key)), "")
    name = info["name"].rstrip("/").rsplit("/", 1)[-1]
    return Entry(name, info.get("size") or 0, str(version), info["type"] == "directory")


def _transport_errors() -> list[type[Exception]]:
    found = []
    for name in TRANSPORT_ERRORS:
        module, _, error = name.rpartition(".")
        with contextlib.suppress(ImportError, AttributeError):
            found.append(getattr(importlib.import_module(module), error))
    return found


def _secrets(options: Any, secret: bool = False) -> Iterator[str]:
    """The values in storage options that must not be shown."""
    if isinstance(options, dict):
        for name, value in options.items():
            yield from _secrets(value, secret or bool(SECRET.search(str(name))))
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _secrets(value, secret)
    elif secret and isinstance(options, str) and len(options) >= 4:
        yield options
