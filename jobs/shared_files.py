"""Whether a cluster's nodes see the local files of a job: dataset, weights, output. It asks them; it copies nothing."""

from typing import TYPE_CHECKING

from jobs.checks import CheckedInput, CheckedWeights, note
from jobs.config import OutputConfig, RayConfig
from jobs.job_file import Job
from pipeline.errors import RunDirError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.records import Shard

MOST_FILES = 16  # of the dataset: its first, its last and some between
MOST_NAMES = 3
REMEDY = "use a file system that all nodes share, or object storage"


def check_shared_files(job: Job, dataset: CheckedInput, weights: CheckedWeights) -> None:
    """Note what lies on this machine only. Does nothing for a job that runs on this machine."""
    ray, output = job.section(RayConfig), job.section(OutputConfig)
    if ray is None or output is None or ray.address == "local":
        return
    files: dict[str, tuple[str, int | None]] = {}
    for url, size in _sample(dataset.shards):
        files[url] = "input.path", size
    if weights.info.path is not None:
        files[weights.info.path] = "model.weights", None
    from pipeline.storage import Storage
    from pipeline.survey import survey

    root = None if "://" in output.path else Storage.at(output.path).root
    try:
        found = survey(ray.address, {path: size for path, (_, size) in files.items()}, root)
    except RunDirError as error:
        note(job, "ray.address", str(error))
        return
    if found.without_package:
        remedy = "install the same mimi-jobs there, or submit with --detach, which brings it along"
        job.add("ray.address", f"mimi-jobs isn't installed on {_names(found.without_package)}; {remedy}")
    told = set()
    for path, nodes in found.unseen.items():
        key = files[path][0] if path in files else "output.path"
        if key not in told:
            told.add(key)
            job.add(key, f"{path} isn't the same on {_names(nodes)} as here, {REMEDY}")


def _sample(shards: "tuple[Shard, ...]") -> "Iterable[tuple[str, int | None]]":
    """Some of the plan's local files, with their sizes."""
    if not shards:
        return
    places = {round(step * (len(shards) - 1) / (MOST_FILES - 1)) for step in range(MOST_FILES)}
    for place in sorted(places):
        for file in shards[place].files[:1]:
            if "://" not in file.url:
                yield file.url, file.size


def _names(nodes: tuple[str, ...]) -> str:
    return ", ".join(nodes[:MOST_NAMES]) + (f" and {len(nodes) - MOST_NAMES} more" if len(nodes) > MOST_NAMES else "")
