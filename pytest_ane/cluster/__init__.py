"""The same work over many machines: tasks of a Dask cluster, judged where pytest runs.

pytest submits a task for each build, reference and measurement (`client`). A worker does it in a
checkout of its own (`tasks`), with what the run has sent of its manifest; cache entries travel
between workers as they are (`job`).
"""
