"""Packages that people bring, converted from torch and compressed by coremltools, and their faults.

`python -m tests.battery.brought` puts each fault into a package, names its references in several
forms, and prints what the gates say of each.
"""
