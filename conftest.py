"""Set-up of every run in this checkout.

Kept free of plugins and heavy imports: the gates below this folder load it too, from whatever
project they are run in.
"""

from __future__ import annotations
