"""The codec's one error of its own; nothing else lives here."""


class CheckpointError(ValueError):
    """Weights that can't be used: one line that names the file, tensor or key, the value found, and the remedy."""
