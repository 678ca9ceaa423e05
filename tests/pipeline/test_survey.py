"""A survey's own side: what it puts down and takes away, and an address where nothing is."""

import pytest

from pipeline import survey as module
from pipeline.errors import RunDirError
from pipeline.survey import survey


def test_nothing_is_left_of_the_look_at_a_folder_that_is_to_be(tmp_path, monkeypatch):
    asked = {}

    def ask(address, files):
        asked.update(files)
        (mark,) = files
        assert (tmp_path / mark).exists() and (tmp_path / mark).parent == tmp_path
        return {"nodes": [], "unseen": {mark: ["far (10.0.0.2)"]}, "without_package": []}

    monkeypatch.setattr(module, "_ask", ask)
    monkeypatch.setattr(module, "_check_reachable", lambda address: None)
    folder = str(tmp_path / "out" / "run")
    found = survey("head:6379", {}, folder)
    assert asked and found.unseen == {folder: ("far (10.0.0.2)",)}
    assert list(tmp_path.iterdir()) == []


def test_an_address_where_nothing_listens_is_refused_at_once():
    with pytest.raises(RunDirError, match=r"ray.address: nothing answers at 127.0.0.1:1 \(connection refused\)"):
        survey("127.0.0.1:1")
