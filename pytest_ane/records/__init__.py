"""Records: what gates measured, kept so that any machine and any later policy can judge it again.

`record` is the one format. `run` writes and reads a run as a file of records; `store` keeps those
that were committed as evidence, which `verify` holds against today's bytes and policy and `compare`
side by side; `memory` reads a folder of many runs, in which `steps` and `history` look for changes;
`audit` judges a whole run again by another branch's rules.
"""
