"""The report: what is on the page, that nothing on it is run or loaded, and how a real browser likes it."""

import base64
import json
import re
import shutil
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import charts, pictures, report_clips
from jobs.cli import main
from jobs.clips import WeightsNote, load_mimi
from jobs.report import write_report
from pipeline.errors import MimiJobsError
from pipeline.marker import marker_name
from pipeline.records import FailedRow
from pipeline.run_dir import RunDir
from tests.jobs.making import make_run, publish, random_codes, wav, write_dataset, write_job

NASTY = "</script><script>document.title='run'</script><img src=x onerror=document.title='run'>&amp;\"'"
KINDS = ("unreadable", "truncated", "empty")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunDir:
    """Two shards, three clips and 40 failed rows, by two workers; text of the dataset tries to be a script."""
    folder = tmp_path_factory.mktemp("report")
    dataset = write_dataset(folder / "dataset", [[wav(), wav(0.5)], [wav(0.3), *[b"no sound"] * 40]])
    run = make_run(write_job(folder, dataset, model={"num_codebooks": 2}))
    first, second = run.shards()
    publish(run, first, [random_codes(3, k=2, seed=1), random_codes(7, k=2, seed=2)])
    failed = [
        FailedRow(1, 1 + i, f"{NASTY} {i}" if i == 0 else f"clip {i}", "decode", KINDS[i % 3], f"{NASTY} number {i}")
        for i in range(40)
    ]
    publish(run, second, [random_codes(4, k=2, seed=3)], failed)
    for shard, marker in run.markers().items():
        timed = replace(marker, worker=f"worker {shard}", seconds=50.0, published=1e9 + 40 * shard)
        (Path(run.storage.root) / marker_name(shard)).write_bytes(timed.to_json())
    run.finish()
    return run


@pytest.fixture(scope="module", autouse=True)
def one_model() -> Iterator[None]:
    """Loading takes a second: all reports share one model, on one thread."""
    import torch

    before, patch = torch.get_num_threads(), pytest.MonkeyPatch()
    torch.set_num_threads(1)
    mimi = load_mimi(WeightsNote("random:0"), 2)
    patch.setattr(report_clips, "load_mimi", lambda note, num_codebooks: mimi)
    yield
    patch.undo()
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def page(run, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    written = write_report(run.storage.root, str(path))
    assert written.problems == [] and written.num_clips == 3 and written.num_bytes == path.stat().st_size
    return path


class Tags(HTMLParser):
    """Every tag with its attributes, and the text of the page."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


# ---- the file


def test_text_of_the_dataset_is_text_on_the_page(page):
    found = Tags(page)
    assert found.text.count(f"{NASTY} number 0") == 1
    assert [tag for tag, _ in found.tags if tag == "script"] == ["script"]
    assert not [value for _, attrs in found.tags for value in attrs if value.startswith("on")]


def test_the_page_asks_for_nothing_outside_itself(page):
    found = Tags(page)
    links = [attrs.get(name) or "" for _, attrs in found.tags for name in ("src", "href") if name in attrs]
    assert links and all(link.startswith("data:") for link in links)
    assert "url(" not in page.read_text().split("</style>")[0] and "@import" not in page.read_text()
    policy = next(attrs["content"] for tag, attrs in found.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy and policy.startswith("default-src 'none'") and "unsafe" not in policy


def test_the_page_says_that_weights_are_random(page):
    assert "The weights are random (random:0)" in Tags(page).text


def test_clips_asked_for_by_key_are_the_ones_to_hear(run, tmp_path):
    written = write_report(run.storage.root, str(tmp_path / "r.html"), keys=["1-0", "none"])
    assert written.num_clips == 1
    assert written.problems == [f"{run.storage.root}: no row has the key 'none', see the column `key`"]
    assert [attrs["aria-label"] for tag, attrs in Tags(tmp_path / "r.html").tags if tag == "audio"] == [
        "Original of 1-0",
        "From the codes of 1-0",
    ]


def test_a_file_of_another_tool_has_a_report_that_says_what_it_lacks(tmp_path):
    codes = pa.array([random_codes(5, k=2).tolist()], pa.list_(pa.list_(pa.int32())))
    pq.write_table(pa.table({"audio_codes": codes}), tmp_path / "x.parquet")
    write_report(str(tmp_path / "x.parquet"), str(tmp_path / "r.html"))
    text = Tags(tmp_path / "r.html").text
    assert "these files don't say where the sound came from" in text
    assert "nothing says which weights made these codes" in text


def test_files_of_other_types_and_unlike_codebooks_are_shown_as_they_are(tmp_path):
    for k in (1, 2):
        table = pa.table(
            {
                "key": [k],
                "codes": pa.array([random_codes(5, k=k).tolist()], pa.list_(pa.list_(pa.int64()))),
                "sample_rate": ["16 kHz"],
                "row": ["first"],
                "duration": ["long"],
            }
        ).replace_schema_metadata({"mimi_jobs": json.dumps({"weights": "random:0"})})
        pq.write_table(table, tmp_path / f"{k}.parquet")
    written = write_report(str(tmp_path), str(tmp_path / "r.html"))
    assert written.num_clips == 2 and len(written.problems) == 1  # the other K
    assert [attrs["aria-label"] for tag, attrs in Tags(tmp_path / "r.html").tags if tag == "audio"] == [
        "From the codes of 1",
        "From the codes of 2",
    ]


def test_damaged_files_are_listed_and_the_rest_still_reported(run, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(run.storage.root, out)
    data = out / "data/train-00000-of-00002.parquet"
    data.write_bytes(bytes(data.stat().st_size))
    (out / "errors/train-00001-of-00002.parquet").write_bytes(
        bytes((out / "errors/train-00001-of-00002.parquet").stat().st_size)
    )
    written = write_report(str(out), str(tmp_path / "r.html"))
    assert len(written.problems) == 2 and written.num_clips >= 1
    assert "2 things to look at" in Tags(tmp_path / "r.html").text


def test_an_empty_folder_has_a_report_too(tmp_path):
    (tmp_path / "empty").mkdir()
    written = write_report(str(tmp_path / "empty"), str(tmp_path / "r.html"))
    assert written.num_clips == 0 and "no parquet file" in written.problems[0]


def test_a_source_that_is_gone_is_said_where_the_original_would_be(tmp_path):
    dataset = write_dataset(tmp_path / "dataset", [[wav()]])
    run = make_run(write_job(tmp_path, dataset, model={"num_codebooks": 2}))
    publish(run, run.shards()[0], [random_codes(3, k=2)])
    shutil.rmtree(dataset)
    write_report(run.storage.root, str(tmp_path / "r.html"))
    assert re.search(r"Not here: .*dataset", Tags(tmp_path / "r.html").text)


@pytest.mark.parametrize("output", ["missing/r.html", "."])
def test_a_place_where_no_report_can_be_is_refused(run, tmp_path, monkeypatch, output):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MimiJobsError, match="give one for the report"):
        write_report(run.storage.root, output)


def test_a_long_clip_is_heard_in_part(tmp_path):
    codes = pa.array([random_codes(400, k=2).tolist()], pa.list_(pa.list_(pa.int32())))
    table = pa.table({"codes": codes}).replace_schema_metadata({"mimi_jobs": json.dumps({"weights": "random:0"})})
    pq.write_table(table, tmp_path / "x.parquet")
    written = write_report(str(tmp_path / "x.parquet"), str(tmp_path / "r.html"))
    assert "32.00 s, the first 8 s here" in Tags(tmp_path / "r.html").text
    assert written.num_bytes < 1_000_000


def test_the_command_writes_the_report_and_keys_are_for_a_report_only(run, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["inspect", run.storage.root, "--html", str(tmp_path / "r.html"), "--keys", "0-1", "--keys", "1-0"])
    said = capsys.readouterr()
    assert ended.value.code == 0 and "2 clips to hear" in said.out and "RANDOM" in said.err
    with pytest.raises(SystemExit) as ended:
        main(["inspect", run.storage.root, "--keys", "0-1"])
    assert ended.value.code == 2 and "add --html FILE" in capsys.readouterr().err


# ---- its parts


def test_a_picture_holds_its_palette_and_its_pixels():
    palette = np.arange(768, dtype=np.uint8).reshape(256, 3)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 9), np.uint8)
    data = base64.b64decode(pictures.png_uri(pixels, palette).split(",")[1])
    assert palette.tobytes() in data
    start = data.index(b"IDAT") + 4
    rows = np.frombuffer(zlib.decompressobj().decompress(data[start:]), np.uint8).reshape(5, 10)
    np.testing.assert_array_equal(rows[:, 1:], pixels)


def test_a_tone_is_a_line_at_its_pitch():
    seconds = np.arange(24_000) / 24_000
    bands = pictures._pitch_bands()
    assert (bands.sum(axis=0) == pytest.approx(1)) and bands.min() >= 0
    strongest = []
    for hz in (100, 1000, 8000):
        tone = np.sin(2 * np.pi * hz * seconds[: pictures.WINDOW]) * np.hanning(pictures.WINDOW)
        strongest.append(int(np.argmax(np.abs(np.fft.rfft(tone)) ** 2 @ bands)))
    assert strongest == sorted(set(strongest)) and strongest[0] < pictures.ROWS / 8 < strongest[2]


def test_speed_over_time_adds_up_to_the_audio():
    spans = [charts.Span("a", 100, 200, 500), charts.Span("a", 150, 300, 300), charts.Span("b", 100, 100, 0)]
    rates = charts._rates(spans, 100, 200 / charts.BINS)
    assert rates.sum() * 200 / charts.BINS == pytest.approx(800)


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0"), (0.5, "0.5"), (2048, "2,048"), (45_000_000, "45M"), (12_345, "12.3k")]
)
def test_numbers_are_short(number, words):
    assert charts.short(number) == words


# ---- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="drives Chromium: pip install playwright")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
        )
        yield launched
        launched.close()


@pytest.fixture(params=["light", "dark"])
def opened(browser, page, request) -> Iterator[Any]:
    """The report in a phone's width; ends with a look at the console."""
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=request.param, offline=True)
    tab = context.new_page()
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda asked: said.append(asked.url) if not asked.url.startswith(("file:", "data:")) else None)
    tab.goto(page.as_uri())
    yield tab
    context.close()
    assert said == []


def shown_keys(tab: Any) -> list[str]:
    return tab.eval_on_selector_all(
        "#failed tbody tr:not([hidden]) td:first-child", "cells => cells.map(c => c.textContent)"
    )


def eventually(tab, condition: str) -> None:
    """Wait for a condition; asked from here, since the page's policy forbids it to evaluate text again and again."""
    deadline = time.monotonic() + 20
    while not tab.evaluate(condition):
        assert time.monotonic() < deadline, condition
        time.sleep(0.05)


def test_every_sound_loads_and_one_plays_at_a_time(opened):
    eventually(opened, "[...document.querySelectorAll('audio')].every(a => a.readyState === 4)")
    durations = opened.eval_on_selector_all("audio", "sounds => sounds.map(a => a.duration)")
    assert len(durations) == 6
    np.testing.assert_allclose(durations[::2], [0.2, 0.5, 0.3], atol=1e-3)  # the originals
    np.testing.assert_allclose(durations[1::2], [0.24, 0.56, 0.32], atol=1e-3)  # what 3, 7 and 4 frames give
    opened.evaluate("document.querySelectorAll('audio').forEach(a => { a.loop = true; a.muted = true; })")
    opened.evaluate("document.querySelectorAll('audio')[0].play().catch(() => {}), null")
    opened.locator(".picture.seek").nth(1).click()
    eventually(opened, "!document.querySelectorAll('audio')[1].paused && document.querySelectorAll('audio')[0].paused")
    eventually(opened, "document.querySelector('.picture.codes .head').style.left !== ''")


def test_every_picture_is_drawn(opened):
    sizes = opened.eval_on_selector_all(
        "img", "images => images.map(i => [i.naturalWidth, i.naturalHeight, i.clientHeight])"
    )
    assert len(sizes) == 9 and all(min(size) > 0 for size in sizes)
    assert opened.locator("figure svg").count() == 5


def test_nothing_is_wider_than_a_phone(opened):
    opened.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert opened.evaluate("document.documentElement.scrollWidth") <= 360
    wide = opened.evaluate(
        "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, pre, svg') &&"
        " e.getBoundingClientRect().right > 361).map(e => e.tagName + '.' + e.className)"
    )
    assert wide == []


def test_failed_rows_sort_both_ways_and_by_number(opened):
    opened.get_by_role("button", name="row").click()
    assert shown_keys(opened)[1:4] == ["clip 1", "clip 2", "clip 3"]
    opened.get_by_role("button", name="row").click()
    assert shown_keys(opened)[:2] == ["clip 39", "clip 38"]
    opened.get_by_role("button", name="key").click()
    assert [key for key in shown_keys(opened) if key.startswith("clip")][:2] == ["clip 1", "clip 2"]


def test_failed_rows_filter_by_text_and_kind(opened):
    assert opened.locator("#count").inner_text() == "40 rows"
    opened.fill("#filter", "NUMBER 3")
    assert shown_keys(opened) == ["clip 3", *[f"clip {i}" for i in range(30, 40)]]
    opened.select_option("#kind", "empty")
    assert shown_keys(opened) == ["clip 32", "clip 35", "clip 38"]
    assert opened.locator("#count").inner_text() == "3 of 40 rows"
    opened.fill("#filter", "")
    opened.select_option("#kind", "")
    assert len(shown_keys(opened)) == 40


def test_no_text_of_the_dataset_ran(opened):
    assert opened.title() == "out: Mimi codes"
