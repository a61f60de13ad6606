"""embed: rows of a table."""

import numpy as np

FROM_LAST = -1
PADDED = -2


def embed(out, tokens, last, rows, table, scale) -> None:
    """out f32 [T,D], tokens i32 [T], last i32 [S], rows i32 [T], table f32 [V,D]."""
    ids = np.where(tokens == FROM_LAST, last[rows], tokens)
    out[:] = table[np.maximum(ids, 0)] * np.float32(scale)
    out[tokens == PADDED] = 0
