"""The run directory: manifest, plan, markers, publication. What has no marker does not exist.

Rows get into staged files by `writer.py`, in the actors; here they are published, by the driver alone, under the lock.
"""

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from pipeline.card import card
from pipeline.errors import RunDirError
from pipeline.lock import Lock
from pipeline.marker import Marker, marker_name
from pipeline.marker_index import read_markers, write_index
from pipeline.merge import write_parquet
from pipeline.parts import state_folder
from pipeline.plan import Plan
from pipeline.records import Shard, ShardResult
from pipeline.schema import FOLDERS, file_split, shard_file, with_facts
from pipeline.storage import TEMPORARIES, Storage

MANIFEST = "job.json"
CARD = "README.md"
PLAN = "_state/plan.parquet"
SCHEMA = "_state/schema.arrow"
PROGRESS = "_state/progress.json"
SHARD_STATE = re.compile(r"\d{5,9}")
INDEX_EVERY = 1000  # markers


class RunDir:
    """A run on disk or in an object store. Methods may be called from several threads; publishing needs the lock.

    manifest: what job.json holds. Read here: `fingerprint`, `facts` (what the fingerprint is of), and by the card `job`
    (the resolved job file) and `weights`; the rest is the submission's.
    """

    def __init__(self, storage: Storage, manifest: dict[str, Any]):
        self.storage, self.manifest = storage, manifest
        self._plan: Plan | None = None
        self._published = 0
        self._indexed = 0
        # Of its own: Arrow keeps what each thread that writes a file has taken, and publishers are many.
        self._indexer = ThreadPoolExecutor(1, thread_name_prefix="index")
        self._indexing: Future[None] | None = None
        self._guard = threading.Lock()

    @classmethod
    def create(
        cls,
        path: str,
        *,
        manifest: dict[str, Any],
        shards: Iterable[Shard],
        schema: pa.Schema,
        storage_options: dict[str, Any] | None = None,
    ) -> "RunDir":
        """A new run, or the same one if it is there already. RunDirError where something else is.

        The manifest is written last: a run that was only half made is made again.
        """
        storage = Storage.at(path, storage_options)
        found = _look(storage)
        if found is not None:
            if found.get("fingerprint") != manifest["fingerprint"]:
                differs = "; ".join(difference(found.get("facts", {}), manifest.get("facts", {}))) or "its fingerprint"
                raise RunDirError(f"{storage.root}: holds another job's run ({differs}); choose another output.path")
            return cls(storage, found)
        plan = Plan.of(shards)
        with storage.open_staged(PLAN) as sink:
            plan.write(sink)
        schema = with_facts(schema, num_shards=len(plan))
        storage.write_bytes_atomic(SCHEMA, schema.serialize().to_pybytes())
        storage.write_bytes_atomic(MANIFEST, _pretty(manifest))
        run = cls(storage, manifest)
        run._plan = plan
        run._write_card({})
        return run

    @classmethod
    def open(cls, path: str, storage_options: dict[str, Any] | None = None) -> "RunDir":
        """A run that exists. RunDirError if there is none, or its manifest is damaged."""
        storage = Storage.at(path, storage_options)
        manifest = _read_manifest(storage)
        if manifest is None:
            raise RunDirError(f"{storage.root}: is not a run: there is no {MANIFEST}; give the output.path of a job")
        return cls(storage, manifest)

    def check_manifest(self) -> None:
        """RunDirError where what job.json says of the rows isn't what the run began with: it was edited."""
        if "facts" in self.manifest and fingerprint(self.manifest["facts"]) != self.manifest["fingerprint"]:
            raise RunDirError(
                f"{self.storage.join(MANIFEST)}: was edited: its facts don't have its fingerprint; put it back as it "
                "was, or submit a new job"
            )

    def plan(self) -> Plan:
        if self._plan is None:
            self._plan = Plan.read(self._read(PLAN))
        return self._plan

    def shards(self) -> Sequence[Shard]:
        """Every planned shard, in order; made as they are asked for."""
        return self.plan()

    def schema(self) -> pa.Schema:
        """The schema of every data file, with its metadata."""
        try:
            return pa.ipc.read_schema(pa.py_buffer(self._read(SCHEMA)))
        except pa.ArrowException as error:
            raise RunDirError(f"{self.storage.join(SCHEMA)}: is damaged; start the job again elsewhere") from error

    def markers(self) -> dict[int, Marker]:
        """The shards that are done, without a look at their files (`pending` takes one)."""
        return read_markers(self.storage, self.storage.list("_state"))[0]

    def missing(self, markers: dict[int, Marker] | None = None) -> dict[int, str]:
        """Shards whose files aren't what their markers say, with the reason: gone, or of another size."""
        markers = self.markers() if markers is None else markers
        sizes = {f"{folder}/{e.name}": e.size for folder in FOLDERS for e in self.storage.list(folder)}
        reasons = {}
        for shard, marker in markers.items():
            for file in marker.files:
                size = sizes.get(file.path)
                if size != file.num_bytes:
                    what = "is missing" if size is None else f"has {size} bytes, not {file.num_bytes}"
                    reasons[shard] = f"shard {shard} is done again: {file.path} {what}"
        return reasons

    def pending(self, *, retry_failed: bool = False) -> tuple[Sequence[Shard], list[str]]:
        """The shards that are not done, in order, and a line for each that was done and is to be done again.

        With `retry_failed` those that have failed rows too.
        """
        markers, damaged = read_markers(self.storage, self.storage.list("_state"))
        reasons = {shard: f"shard {shard} is done again: its marker is damaged" for shard in damaged}
        reasons |= self.missing(markers)
        waiting = [
            index
            for index in range(len(self.plan()))
            if index not in markers or index in reasons or (retry_failed and markers[index].failed)
        ]
        return self.plan().select(waiting), [reasons[index] for index in sorted(reasons)]

    def next_attempt(self) -> int:
        """A number for attempts that no earlier attempt had."""
        used = [marker.attempt for marker in self.markers().values()]
        for folder in self._open_shards():
            for entry in self.storage.list(f"_state/{folder}"):
                match = re.match(r"[a-z]+-(\d{4,})-", entry.name)
                used.extend([int(match[1])] if match else [])
        return max(used, default=0) + 1

    @contextlib.contextmanager
    def locked(self) -> Iterator[Lock]:
        """Hold the run's lock, with what dead drivers left behind swept away. RunDirError if another holds it."""
        lock = Lock.acquire(self.storage)
        try:
            self._sweep()
            yield lock
        finally:
            with contextlib.suppress(RunDirError):  # it is taken over as a dead holder's lock
                lock.release()

    def publish(self, result: ShardResult, shard: Shard, lock: Lock, *, worker: str = "") -> Marker:
        """Give a shard's staged files their final names, then write its marker. Only the driver calls this.

        Killed at any point, the shard is either done or not done, and not done means that it can be done again.
        """
        assert result.shard == shard.index
        name = shard_file(shard, len(self.plan()))
        finals = {file.final for file in result.files}
        assert f"data/{name}" in finals and finals <= {f"{folder}/{name}" for folder in FOLDERS}
        lock.check()
        for file in result.files:
            if self.storage.size(file.staged) != file.num_bytes:
                raise RunDirError(
                    f"{self.storage.join(file.staged)}: was damaged or taken away; run `mimi-jobs resume`"
                )
        self.storage.remove(marker_name(shard.index))
        for file in result.files:
            self.storage.rename(file.staged, file.final)
        for folder in FOLDERS:
            if f"{folder}/{name}" not in finals:
                self.storage.remove(f"{folder}/{name}")
        marker = Marker.of(result, published=time.time(), worker=worker)
        lock.check()
        self.storage.write_bytes_atomic(marker_name(shard.index), marker.to_json())
        self.storage.remove_tree(state_folder(shard.index))
        self._note_published()
        return marker

    def write_progress(self, facts: dict[str, Any]) -> None:
        """Leave a note for `status` on how the run stands; nothing depends on it."""
        self.storage.write_bytes_atomic(PROGRESS, _pretty(facts), durable=False)

    def read_progress(self) -> dict[str, Any] | None:
        """The last note, or None if there is none that can be understood."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            facts = json.loads(self.storage.read_bytes(PROGRESS))
            return facts if isinstance(facts, dict) else None
        return None

    def finish(self) -> None:
        """Bring the dataset card up to date. For the driver, at the end of a run, finished or not."""
        markers = self.markers()
        if not len(self.plan()) and not self.storage.list("data"):  # `load_dataset` wants one file
            split = file_split(self.manifest.get("job", {}).get("input", {}).get("split") or "train")
            with self.storage.open_staged(f"data/{split}-00000-of-00000.parquet") as sink:
                write_parquet(sink, self.schema(), iter(()))
        self._write_card(markers)
        self._indexer.submit(self._index).result()

    def _write_card(self, markers: dict[int, Marker]) -> None:
        splits = sorted({file_split(split) for split in self.plan().splits()})
        text = card(self.manifest, self.schema(), markers.values(), len(self.plan()), splits)
        self.storage.write_bytes_atomic(CARD, text.encode())

    def _open_shards(self) -> list[str]:
        entries = self.storage.list("_state")
        return [entry.name for entry in entries if entry.is_dir and SHARD_STATE.fullmatch(entry.name)]

    def _sweep(self) -> None:
        self.storage.remove_tree(TEMPORARIES)
        entries = self.storage.list("_state")
        folders = [entry.name for entry in entries if entry.is_dir and SHARD_STATE.fullmatch(entry.name)]
        if folders:
            done = {entry.name for entry in entries}
            for folder in folders:
                if f"{folder}.json" in done:
                    self.storage.remove_tree(f"_state/{folder}")

    def _note_published(self) -> None:
        """Have the index brought up to date behind the publishers' backs, each time it lags by a quarter."""
        with self._guard:
            self._published += 1
            idle = self._indexing is None or self._indexing.done()
            if idle and self._published - self._indexed >= max(INDEX_EVERY, self._indexed // 4):
                self._indexed = self._published
                self._indexing = self._indexer.submit(self._index)

    def _index(self) -> None:
        write_index(self.storage, self.storage.list("_state"))

    def _read(self, name: str) -> bytes:
        try:
            return self.storage.read_bytes(name)
        except FileNotFoundError:
            raise RunDirError(f"{self.storage.join(name)}: is missing; start the job again elsewhere") from None


def is_run(path: str, storage_options: dict[str, Any] | None = None) -> bool:
    """Whether a run lies there."""
    return Storage.at(path, storage_options).exists(MANIFEST)


def fingerprint(facts: dict[str, Any]) -> str:
    """sha256 of the facts as canonical JSON: the same for equal facts, whatever their order."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def difference(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs between two sets of facts, a line each: `model.num_codebooks: was 8, is now 16`."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    lines = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was != now:
            lines.append(f"{name}: was {_short(was)}, is now {_short(now)}")
    return lines


def _leaves(facts: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(facts, dict) and facts:
        for name, value in facts.items():
            yield from _leaves(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, json.loads(json.dumps(facts))  # a tuple and a list are the same fact


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _look(storage: Storage) -> dict[str, Any] | None:
    """The manifest of the run that is there; None where there's nothing, or a run that was only begun to be made."""
    manifest = _read_manifest(storage)
    if manifest is None:
        names = [entry.name for entry in storage.list()]
        strangers = [name for name in names if name not in ("_state", "lost+found") and not name.startswith(".")]
        if strangers:
            raise RunDirError(f"{storage.root}: holds something else ({_names(strangers)}); choose another output.path")
    return manifest


def _names(names: list[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")


def _read_manifest(storage: Storage) -> dict[str, Any] | None:
    try:
        manifest = json.loads(storage.read_bytes(MANIFEST))
        if not isinstance(manifest, dict) or "fingerprint" not in manifest:
            raise ValueError("no fingerprint")
        return manifest
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunDirError(f"{storage.join(MANIFEST)}: is not a run's manifest; choose another output.path") from error


def _pretty(facts: dict[str, Any]) -> bytes:
    return (json.dumps(facts, indent=2, sort_keys=True, ensure_ascii=False, default=str) + "\n").encode()
