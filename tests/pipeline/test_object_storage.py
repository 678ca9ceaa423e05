"""A run on S3, against a moto server in this process that fails when told to."""

import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("s3fs")
pytest.importorskip("moto.server")

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from pipeline.errors import RunDirError
from pipeline.lock import STALE_S, Holder, Lock
from pipeline.object_storage import ObjectStorage
from pipeline.run_dir import RunDir
from pipeline.storage import Storage
from tests.pipeline.run_helpers import check_shard, do_shard, encoded, finish_run, make_run, writer_of

ROWS = "eefsee"
SLOW_DOWN = (
    "503 Slow Down",
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>",
)
INTERNAL = ("500 Internal Server Error", b"<Error><Code>InternalError</Code><Message>We erred.</Message></Error>")
DENIED = ("403 Forbidden", b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")


class Faults:
    """Answers some requests itself: `choose(number, method, path)` gives the answer, or None to let it through."""

    def __init__(self) -> None:
        self.app = DomainDispatcherApplication(create_backend_app)
        self.choose: Callable[[int, str, str], tuple[str, bytes] | None] = lambda number, method, path: None
        self.number = 0

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        self.number += 1
        answer = self.choose(self.number, environ["REQUEST_METHOD"], environ["PATH_INFO"])
        if answer is None:
            return self.app(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response(answer[0], [("Content-Type", "application/xml"), ("Content-Length", str(len(answer[1])))])
        return [answer[1]]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Faults, dict[str, Any]]]:
    faults = Faults()
    http = make_server("127.0.0.1", 0, faults, threaded=True)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    options = {
        "key": "AKIDTESTKEY",
        "secret": "very-secret-value",
        "client_kwargs": {"region_name": "us-east-1", "endpoint_url": f"http://127.0.0.1:{http.port}"},
    }
    yield faults, options
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def bucket(server, request, monkeypatch) -> Iterator[tuple[str, dict[str, Any], Faults]]:
    faults, options = server
    faults.choose = lambda number, method, path: None
    monkeypatch.setattr(ObjectStorage, "delays", (0.0, 0.0, 0.0))
    name = f"bucket-{abs(hash(request.node.name)) % 10**8}"
    storage = Storage.at(f"s3://{name}/x", options)
    assert isinstance(storage, ObjectStorage)
    storage._fs.call_s3("create_bucket", Bucket=name)
    yield f"s3://{name}/some run", options, faults
    faults.choose = lambda number, method, path: None


def test_a_whole_run_and_a_resume_from_parts(bucket, tmp_path):
    url, options, _ = bucket
    run = make_run(url, 2, storage_options=options)
    writer = writer_of(run, 0)
    writer.add([encoded(0, 0)])
    writer.checkpoint()
    again = RunDir.open(url, options)
    assert writer_of(again, 0, attempt=2).done == {0}
    finish_run(again, ROWS)
    for shard in range(2):
        check_shard(again, shard, ROWS, tmp_path)
    assert len(again.pending()[0]) == 0 and again.missing() == {}
    assert not [entry for entry in again.storage.list("_state") if entry.is_dir]


def test_a_rewrite_and_a_lost_object(bucket, tmp_path):
    url, options, _ = bucket
    run = make_run(url, 1, storage_options=options)
    finish_run(run, ROWS)
    with run.locked() as lock:
        do_shard(run, lock, 0, "eeesee", attempt=2, retry_failed=True)
    assert not run.storage.exists("errors/train-00000-of-00001.parquet")
    run.storage.remove("data/train-00000-of-00001.parquet")
    assert "is missing" in run.pending()[1][0]
    finish_run(run, ROWS)
    check_shard(run, 0, ROWS, tmp_path / "new")


def test_errors_and_slow_downs_pass_unnoticed(bucket, tmp_path):
    url, options, faults = bucket
    faults.choose = lambda number, method, path: {0: SLOW_DOWN, 3: INTERNAL}.get(number % 7)
    run = make_run(url, 1, storage_options=options)
    finish_run(run, ROWS)
    check_shard(run, 0, ROWS, tmp_path)


def test_errors_without_end_are_one_line_and_nothing_is_half_written(bucket):
    url, options, faults = bucket
    run = make_run(url, 1, storage_options=options)
    lock = Lock.acquire(run.storage)
    faults.choose = lambda number, method, path: INTERNAL if method == "PUT" and "/data/" in path else None
    with pytest.raises(RunDirError, match="can't write after 4 tries: We erred") as caught:
        do_shard(run, lock, 0, ROWS)
    assert "\n" not in str(caught.value) and url in str(caught.value)
    assert run.markers() == {} and not run.storage.list("data")


def test_a_refusal_is_not_tried_again_and_shows_no_secret(bucket):
    url, options, faults = bucket
    message = b"<Error><Code>AccessDenied</Code><Message>not with very-secret-value</Message></Error>"
    faults.choose = lambda number, method, path: (DENIED[0], message)
    before = faults.number
    with pytest.raises(RunDirError, match="permission denied") as caught:
        Storage.at(url, options).write_bytes_atomic("x", b"1")
    assert faults.number == before + 1
    assert "very-secret-value" not in str(caught.value) and "very-secret-value" not in repr(Storage.at(url, options))


def test_a_bucket_that_is_not_there_is_one_line(bucket):
    _, options, _ = bucket
    with pytest.raises(RunDirError, match="no such bucket"):
        Storage.at("s3://nobody-made-this/out", options).write_bytes_atomic("x", b"1")


def test_a_server_that_is_not_there_is_one_line(bucket):
    _, options, _ = bucket
    nowhere = {**options, "client_kwargs": {"region_name": "us-east-1", "endpoint_url": "http://127.0.0.1:9"}}
    with pytest.raises(RunDirError, match="can't read after 4 tries") as caught:
        Storage.at("s3://bucket/out", nowhere).read_bytes("x")
    assert "\n" not in str(caught.value)


def test_a_block_that_raises_uploads_nothing(bucket):
    url, options, _ = bucket
    storage = Storage.at(url, options)
    with pytest.raises(KeyError), storage.open_staged("x") as sink:
        sink.write(b"half")
        raise KeyError
    assert not storage.exists("x")


def test_of_many_that_create_at_once_one_succeeds(bucket):
    url, options, _ = bucket
    storages = [Storage.at(url, options) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: storages[n].create_exclusive("x", b"%d" % n), range(4)))
    assert sum(made) == 1 and storages[0].read_bytes("x") == b"%d" % made.index(True)


def test_an_exclusive_create_whose_answer_was_lost_succeeds(bucket):
    url, options, faults = bucket
    storage = Storage.at(url, options)
    other = Storage.at(url, options)
    lost = []

    def choose(number: int, method: str, path: str) -> tuple[str, bytes] | None:
        if method == "PUT" and not lost:
            lost.append(path)
            other.write_bytes_atomic("x", b"mine")  # it arrived all the same
            return INTERNAL
        return None

    faults.choose = choose
    assert storage.create_exclusive("x", b"mine") and lost


def test_the_lock_of_a_driver_elsewhere_goes_stale(bucket):
    url, options, _ = bucket
    storage = Storage.at(url, options)
    theirs = replace(Holder.here(1000.0), host="other-host", machine="other")
    lock = Lock.acquire(storage, clock=lambda: 1000.0, sleep=lambda seconds: None, me=theirs)
    with pytest.raises(RunDirError, match="other-host"):
        Lock.acquire(storage, clock=lambda: 1001.0, sleep=lambda seconds: None)
    mine = Lock.acquire(storage, clock=lambda: 1001.0 + STALE_S, sleep=lambda seconds: None)
    assert "no sign of life" in mine.notes[0]
    with pytest.raises(RunDirError, match="taken over"):
        lock.check()
    mine.release()
    assert storage.list("_state") == []


def test_a_storage_goes_to_other_processes_by_pickle_and_survives_a_fork(bucket):
    url, options, _ = bucket
    storage = Storage.at(url, options)
    storage.write_bytes_atomic("x", b"1")
    assert pickle.loads(pickle.dumps(storage)).read_bytes("x") == b"1"
    assert isinstance(storage, ObjectStorage)
    built = storage._built
    assert built is not None
    storage._built = (os.getpid() + 1, *built[1:])  # as after a fork
    assert storage.read_bytes("x") == b"1" and storage._built[1] is not built[1]
