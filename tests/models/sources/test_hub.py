"""Repositories of the hub, from the local cache alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from pytest_ane.manifest import SourceTable
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources import Spread, identify, open_source, source_path
from pytest_ane.models.sources.safetensors import SafetensorsSource
from tests.models.sources.checkpoints import bf16, write_checkpoint, write_tokenizer
from tests.models.sources.files import write_gguf
from tests.models.sources.hub import COMMIT, write_snapshot

HUB, OTHER = "maker/tiny-1.5", "f" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no network."""

    def refuse(*_: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A checkpoint of two files, with a tokenizer."""
    parts = ({"a": bf16(np.zeros(2))}, {"b": bf16(np.ones(3))})
    folder = write_checkpoint(tmp_path / "files", *parts, config={"layers": 1})
    write_tokenizer(folder, ["hello"])
    return folder


def opened(**table: Any) -> Any:
    return open_source(SourceTable(**table), lambda name, shape: Spread(1.0))


def test_a_checkpoint_in_the_cache(cache: Path, files: Path, tmp_path: Path) -> None:
    snapshot = write_snapshot(cache, HUB, files)
    assert (snapshot / "config.json").is_symlink()
    source = opened(hub=HUB, config={"more": 2})
    assert isinstance(source, SafetensorsSource)
    assert (source.value("layers"), source.value("more")) == (1, 2)
    assert source.tensor("b", (3,)).tolist() == [1, 1, 1]
    assert source.tokenizer.encode("hello") == [0, 2]
    assert source.label == str(snapshot)


def test_the_commit_is_part_of_the_identity(cache: Path, files: Path, tmp_path: Path) -> None:
    write_snapshot(cache, HUB, files)
    from_folder = identify(SourceTable(path=files), tmp_path)
    from_hub = identify(SourceTable(hub=HUB), tmp_path)
    assert from_hub == from_folder | {"hub": {"id": HUB, "commit": COMMIT}}


def test_revisions(cache: Path, files: Path) -> None:
    main = write_snapshot(cache, HUB, files)
    (files / "config.json").write_text('{"layers": 5}')
    tagged = write_snapshot(cache, HUB, files, OTHER, ref="v2")
    for revision, snapshot in ((None, main), ("main", main), ("v2", tagged), (OTHER, tagged)):
        assert source_path(SourceTable(hub=HUB, revision=revision)) == snapshot
    assert opened(hub=HUB, revision="v2").value("layers") == 5


@pytest.mark.parametrize("file", ["m.gguf", "quantized/m.gguf"])
def test_a_gguf_file_of_a_repository(cache: Path, tmp_path: Path, file: str) -> None:
    (tmp_path / "files" / file).parent.mkdir(parents=True)
    write_gguf(tmp_path / "files" / file, {"w": (np.ones(4), Kind.F32)})
    snapshot = write_snapshot(cache, HUB, tmp_path / "files")
    assert source_path(SourceTable(hub=HUB, file=file)) == snapshot / file
    assert opened(hub=HUB, file=file).tensor("w", (4,)).tolist() == [1, 1, 1, 1]
    identity = identify(SourceTable(hub=HUB, file=file), tmp_path)
    assert (identity["hub"]["commit"], *identity["files"]) == (COMMIT, "m.gguf")


@pytest.mark.parametrize(
    ("table", "file", "command"),
    [
        ({}, "config.json", f"hf download {HUB}"),
        ({"revision": "v9"}, "config.json", f"hf download {HUB} --revision v9"),
        ({"file": "m.gguf"}, "m.gguf", f"hf download {HUB} m.gguf"),
    ],
)
def test_what_is_not_in_the_cache(
    cache: Path, table: dict[str, str], file: str, command: str
) -> None:
    with pytest.raises(SourceError) as error:
        opened(hub=HUB, **table)
    said = f"{file} of {HUB} is not in the Hugging Face cache ({cache}); run: {command}"
    assert str(error.value) == said


def test_a_repository_of_gguf_files(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "ggufs/q8").mkdir(parents=True)
    for name in ("m-Q4_1.gguf", "q8/m-Q8_0.gguf"):
        (tmp_path / "ggufs" / name).write_text("GGUF")
    snapshot = write_snapshot(cache, HUB, tmp_path / "ggufs")
    with pytest.raises(SourceError) as error:
        opened(hub=HUB)
    names = "m-Q4_1.gguf, q8/m-Q8_0.gguf"
    assert str(error.value) == f"{snapshot}: a folder of GGUF files; name one: {names}."


def test_an_adapter_is_no_model(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "lora").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / "lora" / name).write_text("{}")
    write_snapshot(cache, HUB, tmp_path / "lora")
    for table in ({"hub": HUB}, {"path": tmp_path / "lora"}):
        with pytest.raises(SourceError, match="an adapter, which holds changes of a base model"):
            opened(**table)


def test_a_download_that_was_broken_off(cache: Path, files: Path, tmp_path: Path) -> None:
    """Its blob is not there, so the link leads nowhere."""
    snapshot = write_snapshot(cache, HUB, files)
    shard = snapshot / "model-00002-of-00002.safetensors"
    shard.resolve().unlink()
    for call in (lambda: opened(hub=HUB), lambda: identify(SourceTable(hub=HUB), tmp_path)):
        with pytest.raises(SourceError) as error:
            call()
        assert str(error.value) == (
            f"{snapshot}/model.safetensors.index.json: names {shard.name}, which is not there; "
            f"run: hf download {HUB}"
        )
    for file in snapshot.glob("model*"):
        file.unlink()
    with pytest.raises(SourceError, match=f"is in this folder; run: hf download {HUB}$"):
        opened(hub=HUB)


@pytest.mark.parametrize("table", [{"hub": "a--b"}, {"hub": HUB, "file": "../config.json"}])
def test_no_names(cache: Path, files: Path, table: dict[str, str]) -> None:
    write_snapshot(cache, HUB, files)
    with pytest.raises(SourceError, match="is no repository's"):
        opened(**table)


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME"])
def test_where_the_cache_is(files: Path, tmp_path: Path, variable: str) -> None:
    home = tmp_path / "home"
    cache = home if variable == "HF_HUB_CACHE" else home / "hub"
    snapshot = write_snapshot(cache, HUB, files)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGINGFACE"))}
    code = (
        "from pytest_ane.models.sources import source_path\n"
        "from pytest_ane.manifest import SourceTable\n"
        f"print(source_path(SourceTable(hub={HUB!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean | {variable: str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(snapshot)


def test_identities_are_json(cache: Path, files: Path, tmp_path: Path) -> None:
    write_snapshot(cache, HUB, files)
    identity = identify(SourceTable(hub=HUB), tmp_path)
    assert json.loads(json.dumps(identity)) == identity
