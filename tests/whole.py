"""A whole run in this process: the real checks, source, decoders, engine, writer and run directory, but no Ray."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from jobs.submission import check, create_run
from mimi import Mimi
from pipeline.engine import Engine
from pipeline.run_dir import RunDir
from pipeline.spec import AudioPolicy
from pipeline.worker import ShardRun
from pipeline.writer import ShardWriter


def encode_here(job_file: str, model: Mimi, policy: AudioPolicy | None = None, *, retry_failed: bool = False) -> RunDir:
    """Check the job and encode what is pending of it with `model`."""
    prepared = check(job_file)
    run = prepared.existing or create_run(prepared)
    with run.locked() as lock, Engine(model, slots=2, chunk_frames=5, decode_threads=2) as engine:
        for shard in run.pending(retry_failed=retry_failed)[0]:
            writer = ShardWriter(
                run.storage,
                shard,
                run.schema(),
                attempt=run.next_attempt(),
                checkpoint_seconds=1,
                retry_failed=retry_failed,
            )
            reader = prepared.dataset.source.reader
            work = ShardRun(shard, reader=reader, engine=engine, writer=writer, policy=policy or AudioPolicy())
            run.publish(work.run(), shard, lock)
        run.finish()
    return run


def rows(out: Path, folder: str) -> list[dict[str, Any]]:
    files = sorted((out / folder).glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]
