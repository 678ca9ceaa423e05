"""Whole runs through the real command and a real Ray: kills, interruptions, rows that kill or hang their process."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.mimi.checkpoints import SMALL, write_random
from tests.torture.killing import Run, difference, leftover, markers_of, parts_of, rows_of, wait_until
from tests.torture.torture import make_dataset

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
ROWS = 18


def job(folder: Path, data: Path, out: Path, *, actors: int = 2, more: str = "") -> list[str]:
    path = folder / f"{out.name}.yaml"
    path.write_text(
        f'input: {{path: "{data}", id_column: id}}\n'
        f'model: {{weights: "{folder / "weights"}", num_codebooks: 4}}\n'
        f'output: {{path: "{out}", checkpoint_seconds: 1}}\n'
        f"ray: {{actors: {actors}}}\n{more}"
    )
    return ["submit", str(path)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rüns with spaces")
    write_random(folder / "weights", 0, "transformers", SMALL)
    return folder


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    make_dataset(folder / "data", ROWS, seed=1, longest_s=30)
    return folder / "data"


@pytest.fixture(scope="module")
def launch(folder: Path):
    """Starts `mimi-jobs` with arguments and a log of its name; nothing that it started outlives the tests."""
    runs = []

    def start(arguments: list[str], name: str) -> Run:
        runs.append(Run(arguments, folder / f"{name}.log"))
        return runs[-1]

    yield start
    for run in runs:
        run.kill_rest()


@pytest.fixture(scope="module")
def undisturbed(launch, folder: Path, data: Path) -> Path:
    out = folder / "undisturbed"
    run = launch(job(folder, data, out), "undisturbed")
    assert run.wait() == 0, run.log.read_text()
    assert leftover([run]) == []
    return out


def test_a_run_accounts_for_every_row_and_opens_everywhere(undisturbed: Path):
    import datasets
    import duckdb
    import pandas

    rows = rows_of(undisturbed)
    assert len(rows) == ROWS
    assert {identity[0] for identity in rows} == {"data", "errors"}
    loaded = datasets.load_dataset(str(undisturbed), split="train").with_format("torch")
    encoded = sum(identity[0] == "data" for identity in rows)
    assert loaded.num_rows == encoded
    assert tuple(loaded[0]["codes"].shape) == (4, int(loaded[0]["num_frames"]))
    frame = pandas.read_parquet(undisturbed / "data")
    assert len(frame) == encoded and len(frame["codes"].iloc[0]) == 4
    query = f"select count(*), max(codes[1][1]) from '{undisturbed}/data/*.parquet'"
    count = duckdb.connect().execute(query).fetchall()[0]
    assert count[0] == encoded and count[1] < 2048


@pytest.mark.parametrize("target", ["driver", "actor", "group"])
def test_a_killed_run_ends_with_the_rows_of_an_undisturbed_one(launch, folder, data, undisturbed, target):
    out = folder / f"killed-{target}"
    runs = [launch(job(folder, data, out), f"{target}")]
    assert wait_until(lambda: parts_of(out) or markers_of(out)), runs[0].log.read_text()
    assert runs[0].kill(target)
    code = runs[0].wait()
    assert (code == 0) == (target == "actor"), runs[0].log.read_text()
    if target != "actor":
        runs.append(launch(["resume", str(out)], target))
        assert runs[1].wait() == 0, runs[0].log.read_text()
    assert difference(rows_of(undisturbed), rows_of(out)).total() == 0
    assert leftover(runs) == []


def test_a_job_that_goes_wrong_ends_with_the_commonest_failures_and_resumes_with_a_wider_limit(
    launch, folder, data, undisturbed
):
    out = folder / "wrong"
    run = launch(job(folder, data, out, more="audio: {max_failed: 1}\n"), "wrong")
    assert run.wait() == 1
    assert "2 rows failed, more than audio.max_failed (1) allows: unreadable 2" in run.log.read_text()
    again = launch(["resume", str(out), "audio.max_failed=2"], "wrong again")
    assert again.wait() == 0, again.log.read_text()
    assert difference(rows_of(undisturbed), rows_of(out)).total() == 0


def test_an_interrupted_run_exits_130_and_can_be_resumed(launch, folder, data, undisturbed):
    out = folder / "interrupted"
    run = launch(job(folder, data, out), "interrupted")
    assert wait_until(lambda: parts_of(out) or markers_of(out)), run.log.read_text()
    run.process.send_signal(signal.SIGINT)
    assert run.wait(20) == 130
    assert "mimi-jobs resume" in run.log.read_text()
    assert leftover([run]) == []
    again = launch(["resume", str(out)], "interrupted")
    assert again.wait() == 0, run.log.read_text()
    assert difference(rows_of(undisturbed), rows_of(out)).total() == 0


def test_a_second_driver_is_refused_and_told_who_holds_the_run(launch, folder, data):
    out = folder / "two-drivers"
    first = launch(job(folder, data, out), "first")
    assert wait_until((out / "job.json").exists), first.log.read_text()
    second = launch(["resume", str(out)], "second")
    assert second.wait() in (1, 2)
    assert str(first.process.pid) in second.log.read_text()
    assert first.wait() == 0


PATCH = '''
"""Put on the path of every process of one test: a row that holds a certain sound ends or hangs its process."""
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "pipeline.worker":
            return None
        sys.meta_path.remove(self)
        import pipeline.audio, os, time
        before = pipeline.audio.open_audio
        def open_audio(audio, **more):
            if audio.data is not None and audio.data.startswith(b"ABORT"):
                os.abort()
            if audio.data is not None and audio.data.startswith(b"HANG"):
                time.sleep(3600)
            return before(audio, **more)
        pipeline.audio.open_audio = open_audio
        return None

sys.meta_path.insert(0, Finder())
'''


def faulty_dataset(folder: Path, data: Path, first_bytes: bytes) -> Path:
    table = pq.read_table(sorted(data.glob("*.parquet"))[0]).to_pylist()
    table[1]["audio"] = {"bytes": first_bytes + bytes(100), "path": "killer.wav"}
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(table), folder / "train.parquet")
    return folder


@pytest.mark.parametrize(("fault", "kind"), [(b"ABORT", "crashed"), (b"HANG", "timeout")])
def test_a_row_that_ends_or_hangs_its_process_fails_alone(launch, folder, data, monkeypatch, fault, kind):
    patch = folder / f"patch-{kind}"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(PATCH)
    monkeypatch.setenv("PYTHONPATH", str(patch))
    faulty = faulty_dataset(folder / f"data-{kind}", data, fault)
    out = folder / f"out-{kind}"
    run = launch(job(folder, faulty, out, actors=1, more="audio: {row_timeout_s: 3}\n"), f"{kind}")
    assert run.wait() == 0, run.log.read_text()
    errors = pq.read_table(out / "errors").to_pylist()
    assert [(row["row"], row["kind"]) for row in errors if row["row"] == 1] == [(1, kind)]
    assert len(rows_of(out)) == pq.read_metadata(faulty / "train.parquet").num_rows


def test_a_users_own_packages_do_not_shadow_ours(launch, folder, data, monkeypatch):
    own = folder / "own"
    for name in ("pipeline", "jobs", "mimi"):
        (own / name).mkdir(parents=True)
        (own / name / "__init__.py").write_text("raise SystemExit('the wrong package was imported')\n")
    monkeypatch.chdir(own)
    run = launch([*job(folder, data, folder / "shadowed"), "input.limit=2"], "shadowed")
    assert run.wait() == 0, run.log.read_text()


def test_resuming_a_finished_run_starts_no_ray(undisturbed):
    command = [str(Path(sys.executable).parent / "mimi-jobs"), "resume", str(undisturbed), "--debug"]
    code = (
        f"import sys; sys.argv = {command!r}; from jobs.cli import main\n"
        "try: main()\n"
        "except SystemExit as e: print('exit', e.code or 0, 'ray' in sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "exit 0 False" in found.stdout, found.stdout + found.stderr


def test_codes_are_within_range_and_of_the_planned_number(undisturbed):
    table = pq.read_table(undisturbed / "data")
    values = table["codes"].combine_chunks().values.values.to_numpy()
    assert values.dtype == np.uint16 and values.max() < 2048
