"""Operations for a machine without a GPU, in Numba.

Of Numba's thread pools the work queue is taken unless NUMBA_THREADING_LAYER names another: OpenMP's threads
spin while they wait, and where another process wants the cores a small product took 0.8 to 8 ms instead of
0.14. It serves one calling thread at a time, which is how an engine runs.
"""

from numba import config

if config.THREADING_LAYER == "default":
    config.THREADING_LAYER = "workqueue"
