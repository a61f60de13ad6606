"""`python -m xinfer` is the command `xinfer`."""

import sys

from xinfer.cli import main

sys.exit(main())
