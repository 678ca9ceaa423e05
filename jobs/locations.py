"""Which files a path given to `inspect` means: a run's committed files, a folder's parquet files, or one file."""

import posixpath
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.errors import RunDirError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

MANIFEST = "job.json"


@dataclass(slots=True)
class CodeFiles:
    """The files to look into, as their filesystem names them."""

    path: str  # as the user gave it
    fs: "AbstractFileSystem"
    root: str  # the path as `fs` names it
    data: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unfinished_shards: int | None = None  # None: not a run
    model: dict[str, Any] = field(default_factory=dict)  # of a run: weights, precision, fingerprint

    def show(self, name: str) -> str:
        """A file's name as messages say it: beneath the path that the user gave."""
        beneath = posixpath.relpath(name, self.root)
        return self.path if beneath == "." else f"{self.path.rstrip('/')}/{beneath}"


def find_code_files(path: str, storage_options: dict[str, Any] | None = None) -> CodeFiles:
    """Look where `path` (local or an fsspec URL) leads; raises `RunDirError` where nothing is or can be seen."""
    import fsspec

    try:
        fs, root = fsspec.core.url_to_fs(path, **(storage_options or {}))
        found = CodeFiles(path, fs, root.rstrip("/") or root)
        if fs.isfile(root):
            found.data = [found.root]
        elif not fs.isdir(root):
            raise RunDirError(f"{path}: no such file or folder, give a run, a folder of parquet files or one of them")
        elif fs.isfile(f"{found.root}/{MANIFEST}"):
            _list_run(found, storage_options or {})
        else:
            _list_folder(found)
    except (OSError, ValueError, ImportError, *_store_errors(path, storage_options)) as error:
        raise RunDirError(f"{path}: can't be looked into ({' '.join(str(error).split())[:300]})") from None
    return found


def _store_errors(path: str, storage_options: dict[str, Any] | None) -> tuple[type[Exception], ...]:
    """What the libraries below fsspec raise for this store without making an OSError of it."""
    from pipeline.storage import Storage

    try:
        return Storage.at(path, storage_options).failures
    except RunDirError:  # a place where no run can be kept, which may be looked into all the same
        return ()


def _list_folder(found: CodeFiles) -> None:
    """Every parquet file beneath, but for those that a name starting with `_` or `.` hides."""
    for name in sorted(found.fs.find(found.root)):
        parts = posixpath.relpath(name, found.root).split("/")
        if name.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in parts):
            found.data.append(name)
    if not found.data:
        found.problems.append(f"{found.path}: no parquet file in this folder")


def _list_run(found: CodeFiles, storage_options: dict[str, Any]) -> None:
    """The files that the run's markers name: what has no marker does not exist."""
    from pipeline.run_dir import RunDir

    run = RunDir.open(found.path, storage_options)
    markers = run.markers()
    gone = run.missing(markers)
    found.problems += [f"{found.path}: {gone[shard]}, run `mimi-jobs resume`" for shard in sorted(gone)]
    kinds = {"data": found.data, "errors": found.errors, "skipped": found.skipped}
    for shard in sorted(markers.keys() - gone.keys()):
        for kind, names in kinds.items():
            file = markers[shard].file(kind)
            if file is not None:
                names.append(f"{found.root}/{file.path}")
    found.unfinished_shards = len(run.plan()) - len(found.data)
    model = (run.manifest.get("job") or {}).get("model") or {}
    weights = run.manifest.get("weights") or {}
    known = {
        "weights": weights.get("name"),
        "random_weights": weights.get("random"),
        "weights_sha256": weights.get("sha256"),
        "precision": model.get("precision"),
        "fingerprint": run.manifest.get("fingerprint"),
    }
    found.model = {name: value for name, value in known.items() if value is not None}
