"""A run has one BLAS thread, whatever a conftest imports first."""

from __future__ import annotations

import os

import pytest

from tests.plugin.conftest import Project

NAMES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "GOMP_SPINCOUNT")


@pytest.mark.slow
def test_a_conftest_that_imports_numpy_is_not_too_early(project: Project) -> None:
    """In a process of its own, for how many threads numpy has is said once."""
    for name in NAMES:
        os.environ.pop(name, None)
    pytester = project.packages(good="none").pytester
    pytester.makeconftest("import numpy")
    pytester.makepyfile(
        """
        import os
        from threadpoolctl import threadpool_info

        def test_threads():
            assert {one["num_threads"] for one in threadpool_info()} == {1}
            assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
        """
    )
    result = pytester.runpytest_subprocess("--ane-shards=all", "-k", "test_threads")
    result.assert_outcomes(passed=1, deselected=4)
