"""Families by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_ane.manifest import FAMILIES
from pytest_ane.mlprogram.errors import ManifestError, SourceError
from pytest_ane.models.families import Cut, Port, get_family
from pytest_ane.models.sources import SeededSource
from tests.models.families.gemma4.tiny import tiny_model as gemma4
from tests.models.families.llama.tiny import tiny_model as llama
from tests.models.families.zaya.tiny import tiny_model as zaya


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_what_the_protocol_asks(name: str) -> None:
    family = get_family(name)
    assert family.VERSION.startswith(f"{name}/")
    assert callable(family.open_model)
    assert callable(family.layout)
    assert callable(family.wiring)
    assert callable(family.starts_whole)
    assert callable(family.spread)


@pytest.mark.parametrize("name", ["", "Llama", "base", "..errors"])
def test_an_unknown_family(name: str) -> None:
    with pytest.raises(ManifestError) as error:
        get_family(name)
    assert str(error.value) == (
        f"No family {name!r}; there is: {', '.join(FAMILIES)}. A module of that name is neither "
        "in the manifest's folder nor installed."
    )


@pytest.mark.parametrize(("name", "shard"), [("zaya", "L00"), ("gemma4", "L00.attn")])
def test_a_token_beyond_the_vocabulary_is_an_error(name: str, shard: str) -> None:
    """Of synthetic weights too, which have a row for any number."""
    family = get_family(name)
    model = family.open_model(SeededSource(1, family.spread), Cut((shard,)))
    with pytest.raises(SourceError, match="has no row 300000"):
        model.embed([2, 300_000])


MODELS = {
    "llama": llama(("L00", "head.0", "head.1", "head.2")),
    "llama with states": llama(("L00", "head.0", "head.1", "head.2"), context=6),
    "zaya": zaya(("L00", "L01", "head.0", "head.1")),
    "gemma4": gemma4(["head.0", "head.1", "head.2"]),
}
SHARDS = [
    *(("llama", shard) for shard in ("L00", "head.1", "head.2")),
    ("llama with states", "L00"),
    *(("zaya", shard) for shard in ("L00", "L01", "head.0", "head.1")),
    *(("gemma4", shard) for shard in ("L00.attn", "L01.attn", "L00.p0", "L00.p7", "head.2")),
]


@pytest.mark.parametrize(("name", "shard"), SHARDS)
def test_ports_without_weights_are_those_of_the_module(name: str, shard: str) -> None:
    model = MODELS[name]
    module, ports = model.conversion(shard).module.float(), model.ports(shard)

    def shape(port: Port) -> list[int]:
        return [2 if size == "T" else int(size) for size in port.shape]

    y = module(*(torch.zeros(shape(port)) for port in ports.inputs))
    assert [list(y.shape)] == [shape(port) for port in ports.outputs]
    buffers = dict(module.named_buffers())
    assert all(list(buffers[port.name].shape) == shape(port) for port in ports.states)
    assert bool(ports.states) == (model.layout(shard).sees == "state")


def test_a_module_s_own_functions_go_before_a_family_that_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What builds on another family is not that family."""
    own = "layout, wiring, starts_whole, spread, open_model = [lambda *_: None] * 5"
    code = f"from pytest_ane.models.families.llama import FAMILY\nVERSION = 'builds_on/1'\n{own}\n"
    (tmp_path / "builds_on_llama.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert get_family("builds_on_llama").VERSION == "builds_on/1"
