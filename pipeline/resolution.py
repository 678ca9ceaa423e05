"""From the job's `input` to files: which builder reads the dataset, which files each split has, at which commit.

A plain folder is listed here, once, since `datasets` walks it some thirty times (two minutes for 100,000 files, against
one second); it finds the same splits and the same builder. What names its own files (a dataset card, `data_files`, the
hub) is resolved by `datasets` itself. What's in the files is left to `formats`.
"""

import json
import os
import posixpath
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline import endings
from pipeline.dataset_files import describe, full_url, is_url, list_files, stat_files
from pipeline.endings import BUILDERS, METADATA_NAMES, base, belongs, ending, words
from pipeline.errors import SourceError
from pipeline.hub import HUB_PREFIX, by_datasets, folder_of, hub_commit
from pipeline.records import SourceFile
from pipeline.spec import InputSpec

PREFERRED = ("parquet", "arrow", "audiofolder", "webdataset", "zip", "json", "csv", "other")  # of equally frequent ones
NAMED_BUILDERS = frozenset({*BUILDERS.values(), "videofolder"} - {"other", "zip"})
IGNORED_NAMES = frozenset(
    words("README.md config.json dataset_info.json dataset_infos.json dummy_data.zip dataset_dict.json state.json")
)
SPLIT_NAME = re.compile(r"^\w+(\.\w+)*$")
SHARDED = re.compile(r"^data/([^/]+)-\d{5}-of-\d{5}[^/]*\.[^/]*$")
KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}


@dataclass(frozen=True, slots=True)
class Resolved:
    """The files of a dataset, and what reads them."""

    builder: str
    root: str  # the folder or URL that relative paths start from
    splits: dict[str, list[SourceFile]]  # those asked for, in the order asked for
    left_out: dict[str, int] = field(default_factory=dict)  # other splits -> files
    revision: str | None = None  # the commit, of a dataset of the hub
    features: dict[str, Any] = field(default_factory=dict)  # as a dataset card declares them
    notes: tuple[str, ...] = ()


def resolve(spec: InputSpec) -> Resolved:
    """SourceError, in one line, where the dataset or a split of it can't be found."""
    wanted = wanted_splits(spec.split)
    found = _locate(spec)
    return _with_splits(found, wanted)


def wanted_splits(split: str) -> list[str]:
    """The names in `train+validation`. SourceError for slices and for what can't be part of a file name."""
    if "[" in split:
        raise SourceError(
            f"input.split: {split!r}: slices aren't read; take the first rows by input.limit, or a whole split"
        )
    names = [name.strip() for name in split.split("+")]
    for name in names:
        if not SPLIT_NAME.match(name):
            raise SourceError(
                f"input.split: {name!r} can't be a split: letters, digits, _ and single dots between them"
            )
    if len(set(names)) != len(names):
        raise SourceError(f"input.split: {split!r} names a split twice")
    return names


def _with_splits(found: Resolved, wanted: list[str]) -> Resolved:
    names = list(found.splits) if wanted == ["all"] and "all" not in found.splits else wanted
    for name in names:
        if name not in found.splits:
            raise SourceError(f"input.split: no split {name!r}; the dataset has {', '.join(found.splits) or 'none'}")
        if not SPLIT_NAME.match(name):
            raise SourceError(f"input.split: the dataset's split {name!r} can't be part of a file name; choose by name")
    rest = {name: len(files) for name, files in found.splits.items() if name not in names}
    return replace(found, splits={name: found.splits[name] for name in names}, left_out=rest)


def _locate(spec: InputSpec) -> Resolved:
    path = os.path.expanduser(spec.path)
    if path in NAMED_BUILDERS and (spec.data_files is not None or spec.data_dir is not None):
        if spec.data_files is not None:
            return _by_datasets(spec, os.getcwd())
        return _folder(_absolute(spec.data_dir or ""), path)
    if is_url(path) and not path.startswith(HUB_PREFIX):
        return _remote(spec, path)
    if os.path.isfile(path):
        return _single_file(_absolute(path))
    if os.path.isdir(path):
        return _local_folder(spec, _absolute(path))
    if path.startswith(("/", ".", "~")) or (path.count("/") > 1 and not is_url(path)):
        raise SourceError(f"input.path: there is no file or folder {path}")
    return _hub(spec)


def _absolute(path: str) -> str:
    return path if is_url(path) else os.path.abspath(os.path.expanduser(path))


def _single_file(url: str, files: list[SourceFile] | None = None) -> Resolved:
    suffixes = reversed(base(url).lower().split(".")[1:])
    builder = next((BUILDERS[suffix] for suffix in suffixes if suffix in BUILDERS), None)
    if builder is None or builder == "other":
        known = ", ".join(sorted(set(BUILDERS) - endings.AUDIO - endings.VIDEO))
        raise SourceError(f"input.path: {url}: the ending isn't one that is read ({known}, or audio)")
    return Resolved(builder, url.rsplit("/", 1)[0], {"train": files or stat_files([url])})


def _local_folder(spec: InputSpec, root: str) -> Resolved:
    if os.path.isfile(os.path.join(root, "dataset_dict.json")) or os.path.isfile(os.path.join(root, "state.json")):
        return _saved(root, spec.split)
    names_files = any(
        os.path.isfile(os.path.join(root, card)) and _has_configs(os.path.join(root, card)) for card in CARDS
    )
    if spec.data_files is not None or spec.name is not None or names_files:
        return _by_datasets(spec, root)
    folder = os.path.normpath(os.path.join(root, spec.data_dir or ""))
    if not os.path.isdir(folder):
        raise SourceError(f"input.data_dir: there is no folder {folder}")
    return _folder(folder)


CARDS = ("README.md", ".huggingface.yaml")


def _has_configs(card: str) -> bool:
    with open(card, encoding="utf-8", errors="replace") as file:
        text = file.read(1 << 20)
    head = text.split("\n---", 1)[0] if text.startswith("---") else "" if card.endswith(".md") else text
    return re.search(r"^(configs|dataset_info):", head, re.MULTILINE) is not None


def _saved(root: str, split: str) -> Resolved:
    """A folder that `save_to_disk` wrote: of one dataset, or of several by split."""

    def files_of(folder: str) -> tuple[str | None, list[SourceFile]]:
        state = _read_json(os.path.join(folder, "state.json"))
        names = [entry.get("filename", "") for entry in state.get("_data_files") or []]
        if any(os.path.basename(name) != name or not name for name in names):
            raise SourceError(f"{folder}/state.json: a data file isn't in the folder itself; save the dataset again")
        return state.get("_split"), stat_files([os.path.join(folder, name) for name in names])

    dictionary = os.path.join(root, "dataset_dict.json")
    if os.path.isfile(dictionary):
        names = [str(name) for name in _read_json(dictionary).get("splits") or []]
        folders = {name: os.path.join(root, name) for name in names if SPLIT_NAME.match(name)}
        return Resolved("arrow", root, {name: files_of(folder)[1] for name, folder in folders.items()})
    own, files = files_of(root)
    return Resolved("arrow", root, {own or (split if SPLIT_NAME.match(split) else "train"): files})


def _read_json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: can't be read: {describe(error)}") from error
    if not isinstance(value, dict):
        raise SourceError(f"{path}: isn't a JSON object")
    return value


def _remote(spec: InputSpec, url: str) -> Resolved:
    if spec.data_files is not None:
        patterns = _under(spec.data_files, url.rstrip("/"))
        return _by_datasets(spec, url.rstrip("/"), patterns)
    if ending(url) in BUILDERS and "." in url.rsplit("/", 1)[-1]:
        return _single_file(url)
    return _folder(posixpath.join(url, spec.data_dir or "").rstrip("/"))


def _under(patterns: Any, root: str) -> Any:
    """Patterns of data files, those that are relative put under a URL."""
    if isinstance(patterns, str):
        return patterns if is_url(patterns) else f"{root}/{patterns}"
    if isinstance(patterns, dict):
        return {split: _under(value, root) for split, value in patterns.items()}
    return [_under(value, root) for value in patterns]


def _folder(root: str, builder: str | None = None) -> Resolved:
    """Every data file under a folder, by split, for the builder that most of them are for."""
    root = full_url(root)
    files = [file for file in list_files(root) if base(file.url) not in IGNORED_NAMES]
    names = [file.url[len(root) :].lstrip("/") for file in files]
    if builder is None or builder in ("audiofolder", "videofolder"):
        inferred = infer_builder(names, root)
        builder = inferred if builder is None or inferred == "zip" else "audiofolder"
    mine = [i for i, name in enumerate(names) if belongs(name, builder)]
    if not mine:
        raise SourceError(f"input.path: {root} has no file for the builder {builder}")
    splits = split_files([names[i] for i in mine], complete=builder == "audiofolder")
    notes = []
    unsplit = len(mine) - len({i for ids in splits.values() for i in ids})
    if unsplit:
        notes.append(f"{unsplit} files belong to no split, going by the names of the others")
    others = Counter("." + ending(name) for i, name in enumerate(names) if not belongs(name, builder))
    if others:
        listed = ", ".join(f"{count} {ending}" for ending, count in others.most_common(5))
        notes.append(f"files that aren't read: {listed}")
    return Resolved(builder, root, {s: [files[mine[i]] for i in ids] for s, ids in splits.items()}, notes=tuple(notes))


def infer_builder(names: list[str], root: str) -> str:
    """The builder of the commonest ending, sidecar metadata not counted. SourceError where nothing is known."""
    counts: Counter[str] = Counter()
    for name in names:
        if base(name) not in METADATA_NAMES:
            counts.update({BUILDERS[part.lower()] for part in base(name).split(".")[1:] if part.lower() in BUILDERS})
    found = Counter(ending(name) for name in names)
    if not counts:
        if any(base(name) in METADATA_NAMES for name in names):
            return "audiofolder"
        held = ", ".join(f"{count} .{kind}" for kind, count in found.most_common(4)) or "nothing"
        pictures = " (pictures?)" if any(kind in endings.PICTURE for kind in found) else ""
        raise SourceError(f"input.path: {root} holds no file that is read: {held}{pictures}")
    best = max(counts, key=lambda builder: (counts[builder], -PREFERRED.index(builder)))
    if best == "other":
        best = next((b for b in PREFERRED if counts.get(b) and b != "other"), "other")
    if best == "other":
        raise SourceError(f"input.path: {root} holds {', '.join(found)}: name a builder as path, and data_files")
    return best


def split_files(names: list[str], complete: bool) -> dict[str, list[int]]:
    """Split -> places in `names`, as `datasets` has it: sharded names, else keywords in folders, else in names.

    complete: keywords in names count only where they place every file, since recordings are called all sorts of things.
    """
    sharded = {i: match[1] for i, name in enumerate(names) if (match := SHARDED.match(name))}
    if sharded:
        order = [s for s in KEYWORDS if s in sharded.values()]
        order += sorted(set(sharded.values()) - set(KEYWORDS))
        return {split: [i for i, s in sharded.items() if s == split] for split in order}
    folders = [name.rsplit("/", 1)[0] + "/" if "/" in name else "" for name in names]
    bases = [base(name) for name in names]
    for texts, after in ((folders, "(?:[-._ 0-9][^/]*)?/"), (bases, "[-._ 0-9]")):
        found = {}
        for split, keywords in KEYWORDS.items():
            pattern = re.compile(rf"(?:^|/|[-._ 0-9])(?:{'|'.join(keywords)}){after}")
            hits = [i for i, text in enumerate(texts) if pattern.search(text)]
            if hits:
                found[split] = hits
        placed = {i for hits in found.values() for i in hits}
        if found and not (complete and texts is bases and len(placed) < len(names)):
            return found
    return {"train": list(range(len(names)))}


def _hub(spec: InputSpec) -> Resolved:
    """A dataset of the hub, its revision pinned to a commit."""
    dataset = spec.path.removeprefix(HUB_PREFIX).rstrip("/")
    if not re.match(r"^[\w.-]+(/[\w.-]+)?$", dataset):
        raise SourceError(
            f"input.path: {spec.path} is no file or folder here, and can't be a dataset's name on the hub"
        )
    commit = hub_commit(dataset, spec.revision)
    root = f"{HUB_PREFIX}{dataset}@{commit}"
    try:
        builder, splits, features = by_datasets(spec, dataset, spec.data_files, commit)
    except SourceError:
        if spec.data_files is not None or spec.name is not None:
            raise
        try:  # `datasets` doesn't know every ending of audio
            return replace(_folder(posixpath.join(root, spec.data_dir or "").rstrip("/")), revision=commit)
        except SourceError:
            pass
        raise
    return _checked(builder, root, splits, commit, features)


def _by_datasets(spec: InputSpec, root: str, data_files: Any = None) -> Resolved:
    """A folder or URL whose files are named by patterns or a card."""
    asked = spec.data_files if data_files is None else data_files
    if is_url(spec.path):
        path = next((_named_by(pattern) for pattern in _strings(asked)), "parquet")
    else:
        path = os.path.expanduser(spec.path)
    builder, splits, features = by_datasets(spec, path, asked, None)
    if spec.path in NAMED_BUILDERS:
        root = folder_of([file for files in splits.values() for file in files])
    return _checked(builder, root, splits, None, features)


def _named_by(pattern: str) -> str:
    return BUILDERS.get(ending(pattern), "parquet")


def _strings(patterns: Any) -> list[str]:
    if isinstance(patterns, str):
        return [patterns]
    values = patterns.values() if isinstance(patterns, dict) else patterns or []
    return [text for value in values for text in _strings(value)]


def _checked(
    builder: str, root: str, splits: dict[str, list[SourceFile]], commit: str | None, features: dict[str, Any]
) -> Resolved:
    builder = {"videofolder": "audiofolder"}.get(builder, builder)
    if builder == "audiofolder" and all(ending(file.url) == "zip" for files in splits.values() for file in files):
        return Resolved("zip", root, splits, revision=commit)
    if builder not in NAMED_BUILDERS:
        raise SourceError(f"input: the dataset is read by the builder {builder}, which holds no audio that is known of")
    return Resolved(builder, root, splits, revision=commit, features=features)
