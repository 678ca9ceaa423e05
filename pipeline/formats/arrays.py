"""NumPy's .npy bytes as an Arrow value, with nothing unpickled and no array larger than the bytes at hand."""

import io
import math

import numpy as np
import pyarrow as pa


def npy_array(data: bytes) -> pa.Array:
    """One value: a number, or nested lists of the array's own type. ValueError where the bytes are no plain array."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"npy version {version} isn't read")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(stream, max_header_size=10_000)
    if dtype.hasobject:
        raise ValueError("an npy of Python objects isn't read")
    rest = data[stream.tell() :]
    if math.prod(shape) * dtype.itemsize != len(rest):
        raise ValueError(f"an npy of shape {shape} holds {len(rest)} bytes")
    values = np.frombuffer(rest, dtype).reshape(shape, order="F" if fortran else "C")
    nested = pa.array(values.astype(dtype.newbyteorder("="), copy=False).ravel())
    for axis in reversed(range(len(shape))):
        lists = math.prod(shape[:axis])
        offsets = np.arange(lists + 1, dtype=np.int64) * shape[axis]
        nested = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), nested)
    return nested
