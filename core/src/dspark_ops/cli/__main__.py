"""``python -m dspark_ops.cli``: the command line where its script is not on the path."""

from __future__ import annotations

import sys

from dspark_ops.cli import main

sys.exit(main())
