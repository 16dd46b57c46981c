"""What is costly to make for the commands, made once."""

from __future__ import annotations

import pytest

from tests.cli.stacks import Stacks


@pytest.fixture(scope="session")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Stacks:
    from pytest_ane.build.coremltools_quiet import import_coremltools

    import_coremltools()
    return Stacks(tmp_path_factory.mktemp("stacks"))
