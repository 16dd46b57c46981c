"""A shard may not have the name that selects every shard."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.manifest import load, package_manifest
from pytest_ane.mlprogram.errors import ManifestError

OWN = '[models.own.shard.all]\nartifact = "all.mlpackage"\nreference = "none"\n'
LISTED = '[models.mini]\nfamily = "llama"\nsource = "x.gguf"\nshards = "L00, all"\n'


@pytest.mark.parametrize(
    ("text", "where"), [(OWN, "[models.own.shard]"), (LISTED, "[models.mini]")]
)
def test_all_is_no_name_of_a_shard(tmp_path: Path, text: str, where: str) -> None:
    file = tmp_path / "shards.toml"
    file.write_text(text)
    with pytest.raises(ManifestError) as error:
        load(file)
    assert where in str(error.value)
    assert "a shard may not be called 'all', which selects every shard" in str(error.value)


def test_a_package_of_that_name_has_another_id(tmp_path: Path) -> None:
    package = tmp_path / "all.mlpackage"
    package.mkdir()
    assert [shard.id for shard in package_manifest(package).shards] == ["p-all"]
