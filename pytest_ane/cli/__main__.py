"""`python -m pytest_ane.cli`."""

from __future__ import annotations

import sys

from pytest_ane.cli import main

sys.exit(main())
