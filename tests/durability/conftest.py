"""Worker programs, killed and disturbed while clients call them. The tools are those of other tests."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("misbehaving", "kiwi"):
    sys.path.append(str(Path(__file__).parents[1] / folder))
