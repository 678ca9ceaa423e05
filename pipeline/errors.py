"""The errors that the pipeline raises; each carries the facts, and is worded in one line for a user.

`mimi.errors.CheckpointError` is the codec's own; `jobs` words and collects all of them.
"""


class MimiJobsError(Exception):
    """Base of every error that is the user's to mend: its text is one line that names place, value and remedy."""


class ConfigError(MimiJobsError):
    """A job file, an override or an argument is wrong.

    `problems` has one line each, `where: what is wrong, what to do`.
    """

    def __init__(self, problems: list[str]):
        super().__init__("\n".join(problems))
        self.problems = problems


class SourceError(MimiJobsError):
    """The dataset can't be found, planned or read (not: one of its rows is bad, which is a `FailedRow`)."""


class AudioError(MimiJobsError):
    """One recording can't become codes. `kind` is `unreadable`, `truncated`, `empty` or `not_finite`.

    `stage` is where that was seen: `decode`, or `encode` for what only the model's latents show.
    """

    def __init__(self, kind: str, message: str, stage: str = "decode"):
        super().__init__(message)
        self.kind = kind
        self.stage = stage


class RunDirError(MimiJobsError):
    """The run directory can't be used: another job's, locked, damaged, or not writable."""
