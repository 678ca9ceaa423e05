"""Local storage: whole or absent, full disks, folders that may not be written to; one line each."""

import errno
import hashlib
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pipeline import storage as storage_module
from pipeline.errors import RunDirError
from pipeline.lock import Lock
from pipeline.run_dir import RunDir
from pipeline.storage import Storage
from tests.pipeline.run_helpers import check_shard, do_shard, encoded, finish_run, make_run, writer_of

ROWS = "eefsee"


def test_what_is_written_is_read_and_listed_under_any_name(tmp_path):
    storage = Storage.at(tmp_path / "a b/ü#?%")
    storage.write_bytes_atomic("x/ñ.bin", b"123")
    assert storage.read_bytes("x/ñ.bin") == b"123" and storage.size("x/ñ.bin") == 3
    assert [(entry.name, entry.size, entry.is_dir) for entry in storage.list("x")] == [("ñ.bin", 3, False)]
    assert storage.list("nowhere") == [] and storage.size("nowhere") is None and not storage.exists("nowhere")


def test_file_urls_and_home_folders_are_local_paths(tmp_path):
    assert Storage.at(f"file://{tmp_path}/out").root == f"{tmp_path}/out"
    assert Storage.at("~/out").root == str(Path.home() / "out")


def test_reading_what_is_not_there_is_a_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        Storage.at(tmp_path).read_bytes("x")


def test_a_block_that_raises_leaves_nothing_and_the_old_content_stays(tmp_path):
    storage = Storage.at(tmp_path)
    storage.write_bytes_atomic("x", b"old")
    with pytest.raises(KeyError), storage.open_staged("x") as sink:
        sink.write(b"new")
        raise KeyError
    assert storage.read_bytes("x") == b"old" and storage.list("_state/tmp") == []


def test_a_sink_counts_and_hashes(tmp_path, monkeypatch):
    monkeypatch.setattr(storage_module, "WRITE_BUFFER", 4)
    storage = Storage.at(tmp_path)
    with storage.open_staged("x") as sink:
        sink.write(b"abc")
        sink.write(np.arange(3, dtype=np.uint16))
    content = b"abc" + np.arange(3, dtype=np.uint16).tobytes()
    assert storage.read_bytes("x") == content and sink.num_bytes == len(content)
    assert sink.sha256() == hashlib.sha256(content).hexdigest()


def test_only_one_exclusive_create_succeeds_with_or_without_hard_links(tmp_path, monkeypatch):
    storage = Storage.at(tmp_path)
    assert storage.create_exclusive("x", b"1") and not storage.create_exclusive("x", b"2")

    def no_link(*args):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_link)
    assert storage.create_exclusive("y", b"1") and not storage.create_exclusive("y", b"2")
    assert storage.read_bytes("x") == storage.read_bytes("y") == b"1" and storage.list("_state/tmp") == []


def test_a_failure_that_passes_is_tried_again_and_one_that_stays_is_one_line(tmp_path, monkeypatch):
    storage = Storage.at(tmp_path)
    slept = []
    monkeypatch.setattr(storage, "sleep", slept.append)
    real, left = os.replace, [2]

    def replace(source, target):
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.ESTALE, "Stale file handle")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    storage.write_bytes_atomic("x", b"1")
    assert storage.read_bytes("x") == b"1" and len(slept) == 2
    left[0] = 10**9
    with pytest.raises(RunDirError, match=r"x: can't write after 4 tries: Stale file handle"):
        storage.write_bytes_atomic("x", b"2")
    assert storage.read_bytes("x") == b"1"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left: free some, then run `mimi-jobs resume`"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission denied"),
    ],
)
@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_disk_that_refuses_is_told_in_one_line_and_leaves_no_trace(tmp_path, monkeypatch, call, number, words):
    storage = Storage.at(tmp_path)

    def refuse(*args):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        if call == "fsync":
            os.makedirs(tmp_path / "_state/tmp")
        with pytest.raises(RunDirError, match=words) as caught:
            storage.write_bytes_atomic("x", b"1")
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)
    assert not storage.exists("x") and storage.list("_state/tmp") == []


def test_a_disk_that_is_full_at_any_write_loses_nothing(tmp_path, monkeypatch):
    """Part, parquet file, marker: each write in turn finds the disk full; then there's room again."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    real = os.write
    step = 0
    while True:
        run = make_run(tmp_path / str(step), 1)
        left = [step]

        def write(descriptor, data, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(descriptor, data)

        lock = Lock.acquire(run.storage)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write)
            try:
                do_shard(run, lock, 0, ROWS)
                break
            except RunDirError as error:
                assert "no space left" in str(error) and "\n" not in str(error)
        lock.release()
        assert run.markers() == {}
        finish_run(RunDir.open(run.storage.root), ROWS)
        check_shard(run, 0, ROWS, tmp_path)
        step += 1
    assert step >= 6  # two parts, three files, a marker


def test_a_small_disk_that_is_really_full_is_told_and_resumed_from(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user can't mount a small disk")
    try:
        run = make_run(disk / "out", 1)
        ballast = disk / "ballast"
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        ballast.write_bytes(b"\0" * (free - 12_288))
        writer = writer_of(run, 0)
        with pytest.raises(RunDirError, match="no space left"):
            for row in range(2000):
                writer.add([encoded(0, row)])
            writer.finish(2000)
        ballast.unlink()
        finish_run(run, ROWS)
        check_shard(run, 0, ROWS, tmp_path)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_without_write_permission_is_refused_with_a_remedy(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(RunDirError, match="permission denied"):
            make_run(tmp_path / "out")
    finally:
        tmp_path.chmod(0o700)


def test_a_read_only_disk_is_refused_with_a_remedy(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=64k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user can't mount a read-only disk")
    try:
        with pytest.raises(RunDirError, match="read-only"):
            make_run(disk / "out")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
