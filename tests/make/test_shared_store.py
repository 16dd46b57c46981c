"""The shared store: entries come whole and sealed, or are made here; nothing else is served."""

from __future__ import annotations

import io
import os
import tarfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.make.cache import Cache
from pytest_ane.make.shared_store import _MOST_FILES, SharedStore, unpacked
from pytest_ane.mlprogram.errors import CacheError
from tests.s3_server import BUCKET, FAULTS, LOST, S3Server, s3_server

KEYS = tuple(letter * 64 for letter in "abc")
KEY = KEYS[0]


class FileStore:
    """A store in a folder of this machine."""

    faults: list[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = folder.as_uri()
        self.faults = []

    def get(self, name: str) -> bytes | None:
        file = self.folder / name
        return file.read_bytes() if file.exists() else None

    def put(self, name: str, data: bytes) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_bytes(data)

    def delete(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)


class S3Store:
    """A store below `ane/` in a bucket."""

    def __init__(self, server: S3Server) -> None:
        self.server = server
        self.prefix = f"ane-{uuid.uuid4().hex}"
        self.url = f"s3://{BUCKET}/{self.prefix}"
        self.faults = server.faults
        server.faults.clear()

    def get(self, name: str) -> bytes | None:
        return self.server.get(f"{self.prefix}/{name}")

    def put(self, name: str, data: bytes) -> None:
        self.server.put(f"{self.prefix}/{name}", data)

    def delete(self, name: str) -> None:
        self.server.delete(f"{self.prefix}/{name}")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    import s3fs

    with s3_server() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        patch.setattr(s3fs.S3FileSystem, "retries", 1)
        yield running


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FileStore | S3Store:
    if request.param == "file":
        return FileStore(tmp_path / "store")
    return S3Store(request.getfixturevalue("server"))


class Machine:
    """A machine with a cache of its own, and what it was told."""

    def __init__(self, folder: Path, url: str, max_size: int | None = None) -> None:
        self.told: list[str] = []
        self.made: list[str] = []
        store = SharedStore(url, self.told.append)
        self.cache = Cache(folder, notify=self.told.append, store=store, max_size=max_size)

    def ask(self, key: str = KEY, text: str = "whole", kind: str = "artifacts") -> str:
        """The text of an entry, which would be made with `text`."""

        def make(folder: Path) -> None:
            self.made.append(text)
            writes(text)(folder)

        entry = self.cache.get_or_make(kind, key, make, "m:L01")
        return (entry / "model" / "weights").read_text()


def writes(text: str) -> Callable[[Path], None]:
    """A maker of an entry."""

    def make(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_text(text)
        (folder / "model" / "same").write_text("same")

    return make


def name(key: str = KEY, kind: str = "artifacts") -> str:
    return f"{kind}/{key}.tar"


@pytest.fixture
def machine(tmp_path: Path, store: FileStore | S3Store) -> Callable[..., Machine]:
    return lambda folder, **more: Machine(tmp_path / folder, store.url, **more)


@pytest.mark.drawn
@pytest.mark.slow
def test_what_one_machine_made_another_has(machine: Callable[..., Machine]) -> None:
    first, second = machine("first"), machine("second")
    assert first.ask() == second.ask(text="another") == "whole"
    assert (first.made, second.made) == (["whole"], [])
    assert second.cache.get("artifacts", KEY) == second.cache.path("artifacts", KEY)
    assert first.told == second.told == []


def test_a_compiled_model_is_of_one_machine(
    machine: Callable[..., Machine], store: FileStore | S3Store
) -> None:
    machine("first").ask(kind="compiled")
    assert store.get(name(kind="compiled")) is None


def test_a_cache_that_was_there_fills_a_new_store(
    tmp_path: Path, machine: Callable[..., Machine], store: FileStore | S3Store
) -> None:
    Cache(tmp_path / "first").get_or_make("artifacts", KEY, writes("whole"))
    first = machine("first").cache
    (entry,) = first.entries()
    assert first.push(entry)
    assert first.push(entry), "it is there already"
    assert machine("second").ask(text="another") == "whole"


def flipped(data: bytes) -> bytes:
    at = data.index(b"whole")
    return data[:at] + b"While" + data[at + 5 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[:700],
    "flipped": flipped,
    "emptied": lambda data: b"",
    "noise": lambda data: bytes(range(256)) * 40,
    "of another": lambda data: data.replace(KEY.encode(), KEYS[1].encode()),
    "without seal": lambda data: data[1024:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_damaged_in_the_store_is_made_here_and_replaced(
    damage: Callable[[bytes], bytes], machine: Callable[..., Machine], store: FileStore | S3Store
) -> None:
    machine("first").ask()
    whole = store.get(name())
    assert whole is not None
    store.put(name(), damage(whole))
    second = machine("second")
    assert second.ask() == "whole"
    assert second.made == ["whole"]
    (sentence,) = second.told
    assert sentence.startswith(f"m:L01: artifacts/{'a' * 16}")
    assert "is damaged" in sentence
    assert store.get(name()) == whole
    assert second.cache.store is not None
    assert second.cache.store.counts["stored"] == 1


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != LOST])
def test_a_store_that_fails_makes_no_run_fail(fault: str, server: S3Server, tmp_path: Path) -> None:
    store = S3Store(server)
    Machine(tmp_path / "first", store.url).ask()
    second = Machine(tmp_path / "second", store.url)
    server.faults[:] = [fault] * 20
    assert second.ask() == "whole"
    server.faults.clear()
    assert Machine(tmp_path / "third", store.url).ask(text="third") == "whole"
    assert all("secret" not in sentence for sentence in second.told)


def test_after_three_failures_the_store_is_left_alone(server: S3Server, tmp_path: Path) -> None:
    store = S3Store(server)
    one = Machine(tmp_path / "one", store.url)
    server.faults[:] = ["500"] * 100
    for key in KEYS:
        assert one.ask(key, text=key[0]) == key[0]
    left = len(server.faults)
    assert "is not asked again" in " ".join(one.told)
    assert one.ask("d" * 64) == "whole"
    assert len(server.faults) == left
    assert len(one.told) <= 3


def test_an_answer_that_was_lost_is_no_second_writer(server: S3Server, tmp_path: Path) -> None:
    store = S3Store(server)
    one = Machine(tmp_path / "one", store.url)
    server.faults[:] = [LOST]
    assert one.ask() == "whole"
    assert Machine(tmp_path / "two", store.url).ask(text="two") == "whole"


def test_a_store_that_cannot_be_reached(tmp_path: Path) -> None:
    one = Machine(tmp_path / "one", "ftp://user:word@127.0.0.1:9/ane")
    assert one.ask() == "whole"
    assert "The store ftp://127.0.0.1:9/ane cannot be read (Connection refused)." in one.told


def test_a_folder_that_cannot_be_written_is_only_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one = Machine(tmp_path / "one", str(tmp_path / "file" / "store"))
    assert one.ask() == "whole"
    assert any("cannot be written" in sentence for sentence in one.told)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


def test_a_web_server_is_only_read(tmp_path: Path) -> None:
    Machine(tmp_path / "first", str(tmp_path / "store")).ask()
    handler = partial(_Quiet, directory=str(tmp_path / "store"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        two = Machine(tmp_path / "two", f"http://127.0.0.1:{server.server_port}")
        assert two.ask(text="two") == "whole"
        assert two.ask(KEYS[1], text="new") == "new"
        server.shutdown()
    assert two.told == []
    assert not (tmp_path / "store" / name(KEYS[1])).exists()


@pytest.mark.parametrize(
    ("member", "kind"),
    [
        *((member, tarfile.REGTYPE) for member in ("../outside", "{}", "a/../../outside")),
        *(("link", getattr(tarfile, f"{kind}TYPE")) for kind in ("SYM", "LNK", "FIFO")),
        ("link", tarfile.GNUTYPE_SPARSE),
    ],
)
def test_no_file_leads_out_of_an_entry(member: str, kind: bytes, tmp_path: Path) -> None:
    """Nor is a link or a device a file of one."""
    store, outside = tmp_path / "store", tmp_path / "outside"
    (store / "artifacts").mkdir(parents=True)
    with tarfile.open(store / name(), "w") as tar:
        info = tarfile.TarInfo(member.format(outside))
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    one = Machine(tmp_path / "one", str(store))
    assert one.ask() == "whole"
    assert "is damaged" in one.told[0]
    assert not outside.exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nowhere://a/b", "is no URL that fsspec knows"),
        ("https://host/ane?X-Amz-Signature=abc", "has a query"),
        ("sftp://user:word@host/ane", "needs another library"),
    ],
)
def test_a_url_that_means_nothing(url: str, message: str) -> None:
    with pytest.raises(CacheError, match=message) as error:
        SharedStore(url, print)
    for secret in ("abc", "word"):
        assert secret not in str(error.value)


class _Refusing(_Quiet):
    """A web server whose answer repeats passwords."""

    def do_GET(self) -> None:
        self.send_error(500, "not for user:p@ss, user:p%40ss or user:word")


@pytest.mark.parametrize(
    ("user", "secrets"), [("user:p%40ss@", ("p@ss", "p%40ss")), ("user:word@", ("word",))]
)
def test_no_message_holds_a_password(user: str, secrets: Sequence[str], tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        one = Machine(tmp_path / "one", f"http://{user}127.0.0.1:{server.server_port}/ane")
        assert one.ask() == "whole"
        server.shutdown()
    (told,) = one.told
    assert told.startswith(f"The store http://127.0.0.1:{server.server_port}/ane cannot be read (")
    assert "***" in told
    for secret in secrets:
        assert secret not in told


def test_what_finder_leaves_in_an_entry_is_not_stored(tmp_path: Path) -> None:
    first = Machine(tmp_path / "first", str(tmp_path / "there"))
    first.ask()
    (first.cache.path("artifacts", KEY) / ".DS_Store").write_bytes(b"finder")
    again = Machine(tmp_path / "first", str(tmp_path / "store"))
    for entry in again.cache.entries():
        assert again.cache.push(entry)
    two = Machine(tmp_path / "two", str(tmp_path / "store"))
    assert two.ask(text="two") == "whole"
    assert two.told == []


def test_a_cache_that_is_bounded_keeps_what_is_used(tmp_path: Path) -> None:
    old = Cache(tmp_path / "cache")

    def make(folder: Path) -> None:
        (folder / "file").write_bytes(bytes(1000))

    for key in KEYS:
        path = old.get_or_make("artifacts", key, make)
        os.utime(path, (1, 1))
    assert old._user is not None
    old._user.release()  # As if the process that used them had ended.
    new = Cache(tmp_path / "cache", max_size=0)
    made = new.get_or_make("artifacts", "d" * 64, make)
    assert [entry.path for entry in new.entries()] == [made]


def test_an_archive_of_too_many_files_is_left_at_once(tmp_path: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for number in range(_MOST_FILES + 1):
            tar.addfile(tarfile.TarInfo(f"f{number}"))
    archive.seek(0)
    (tmp_path / "entry").mkdir()
    assert unpacked(archive, tmp_path / "entry") == "it has more than 4,096 files"


@pytest.mark.parametrize(
    ("stalls", "says"),
    [(False, "has more than the 10 bytes told"), (True, "nothing came for 0 s")],
)
def test_a_download_ends(
    stalls: bool, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bytes and in time; then the entry is made here."""
    said: list[str] = []
    shared = SharedStore(str(tmp_path / "store"), said.append)
    monkeypatch.setattr("pytest_ane.make.shared_store._PATIENCE", 0.2)

    def get_file(path: str, archive: str, callback: Any) -> None:
        callback.set_size(10)
        while True:
            if stalls:
                threading.Event().wait(30)
            callback.relative_update(7)

    monkeypatch.setattr(shared._files, "get_file", get_file)
    (tmp_path / "here").mkdir()
    assert shared.fetch("artifacts", KEY, tmp_path / "here") is None
    assert says in said[0]
    assert not list((tmp_path / "here").iterdir())
