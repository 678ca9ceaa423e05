"""Damaged recordings become samples or a reason. `tests/fuzz/fuzz_audio.py` does this by the thousand, in processes."""

import resource

import pytest

from tests.fuzz.fuzz_audio import outcome
from tests.fuzz.mutations import FORMATS, mutated

COUNT = 50
MEMORY_BYTES = 200 << 20


@pytest.mark.timeout(120)
@pytest.mark.parametrize("format", FORMATS)
def test_damaged_recordings_become_samples_or_a_reason(format):
    data = FORMATS[format]()
    assert outcome(data) == "codes"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {outcome(mutated(data, seed)) for seed in range(COUNT)}
    assert found <= {"codes", "unreadable", "truncated", "empty", "not_finite"}
    assert len(found) > 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < MEMORY_BYTES
