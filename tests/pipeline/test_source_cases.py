"""Every dataset of the shared cases: its rows, keys and order, its sound and its kept values, byte for byte."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.columns import RESERVED
from pipeline.records import Audio, Row
from tests.pipeline.source_data import kept, rows_of, source, starts_anywhere

SCRIPT = Path(__file__).resolve().parents[3] / "shared" / "cases" / "make_cases.py"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the shared cases aren't beside the repository")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cases")
    subprocess.run([sys.executable, str(SCRIPT), str(out)], check=True, capture_output=True)
    return out


def entries(cases: Path) -> list[dict[str, Any]]:
    return json.loads((cases / "cases.json").read_text(encoding="utf-8"))


def job_input(entry: dict[str, Any], cases: Path) -> dict[str, Any]:
    spec = dict(entry["job_input"])
    for name in ("path", "data_files"):
        if (cases / spec.get(name, "\0")).exists():
            spec[name] = str(cases / spec[name])
    return spec


def test_every_dataset_gives_its_rows_in_order(cases: Path):
    everything = entries(cases)
    datasets = [entry for entry in everything if entry["kind"] == "dataset" and entry.get("row") is None]
    assert datasets
    for entry in datasets:
        src = source(**job_input(entry, cases))
        rows = rows_of(src)
        wanted = [e["row"] for e in everything if e["input"] == entry["input"] and e.get("row") is not None]
        assert len(rows) == entry["rows"] == len(wanted), entry["id"]
        for row, name in zip(rows, wanted, strict=True):
            assert isinstance(row, Row)
            assert isinstance(name, int) or row.key.endswith(name)
        assert src.kept_schema == kept(src).schema
        for shard in src.plan():
            starts_anywhere(src, shard)


def test_parquet_columns_and_sound_are_kept_byte_for_byte(cases: Path):
    folders = sorted({path.parent for path in (cases / "datasets").glob("*/*.parquet")})
    assert folders
    for folder in folders:
        tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
        stored = pa.concat_tables([table.replace_schema_metadata(None) for table in tables], promote_options="default")
        src = source(folder, id_column="id")
        for row, value in zip(rows_of(src), stored["audio"].to_pylist(), strict=True):
            assert isinstance(row, Row)
            expected = None if value in (None, {"bytes": None, "path": None}) else Audio(value["bytes"], value["path"])
            assert row.audio == expected
        table = kept(src)
        names = [name for name in stored.column_names if name != "audio"]
        assert table.column_names == [f"{name}_" if name in RESERVED else name for name in names]
        for name, out in zip(names, table.column_names, strict=True):
            assert table[out].type == stored[name].type
            assert table[out].to_pylist() == stored[name].to_pylist()
