"""Who may join a cluster, and what its machines listen to."""

from __future__ import annotations

import os
import socket
import ssl
from pathlib import Path

import psutil
import pytest
from distributed import Client
from distributed.security import Security

from pytest_ane.cluster.workers import require_trust
from pytest_ane.mlprogram.errors import ClusterError
from tests.cluster.conftest import Runs, Site
from tests.tools.conftest import Says, says

__all__ = ["says"]
pytestmark = pytest.mark.cluster


def listening(*pids: int) -> list[tuple[str, int]]:
    """Where processes, and those that they started, listen."""
    every = [psutil.Process(pid) for pid in pids]
    every += [child for process in every for child in process.children(recursive=True)]
    found = (c for process in every for c in process.net_connections("inet"))
    return [(c.laddr.ip, c.laddr.port) for c in found if c.status == psutil.CONN_LISTEN]


def elsewhere() -> list[str]:
    """This machine's addresses that others reach."""
    every = (a for addresses in psutil.net_if_addrs().values() for a in addresses)
    inet = [a.address for a in every if a.family in (socket.AF_INET, socket.AF_INET6)]
    return [a for a in inet if not a.startswith(("127.", "::1", "fe80"))]


def test_a_worker_of_a_local_scheduler_listens_to_nobody_else(site: Site, runs: Runs) -> None:
    runs.own(good="none")
    site.work("plain")
    ports = listening(site.processes[-1].pid)
    assert len(ports) >= 3  # Of nanny and worker, and the worker's for HTTP.
    assert {ip for ip, _ in ports} == {"127.0.0.1"}
    for address in elsewhere():
        for _, port in ports:
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((address, port), timeout=5)


def test_strangers_are_refused_by_certificates(
    site: Site, runs: Runs, tmp_path: Path, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes over TLS, and somebody without the key, or with another one."""
    site.close()
    said = says("cluster-keys", tmp_path / "keys")
    file = tmp_path / "keys/cluster.yaml"
    assert said[1] == f"on each machine, with a copy of it: export DASK_CONFIG={file}"
    assert file.stat().st_mode & 0o077 == 0
    site.environment["DASK_CONFIG"] = str(file)
    monkeypatch.setenv("DASK_CONFIG", str(file))
    site.schedule(tls=True)
    site.work("plain")
    host, port = site.url.removeprefix("tls://").split(":")
    ended = runs.end(runs.own(good="none").start(f"--ane-cluster={site.url}"))
    assert ended.code == 0, ended.text
    for url, keys in (
        (site.url.replace("tls", "tcp"), Security()),
        (site.url, Security.temporary()),
    ):
        with pytest.raises((OSError, TypeError, ValueError)):
            Client(url, timeout=2, security=keys)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((host, int(port)), timeout=5) as plain,
        pytest.raises(ssl.SSLError),
        context.wrap_socket(plain) as stranger,
    ):
        stranger.recv(1)  # With TLS 1.3 the refusal comes with the first answer.
    assert os.environ["DASK_CONFIG"] == str(file)


def test_a_key_is_not_replaced(tmp_path: Path, says: Says) -> None:
    says("cluster-keys", tmp_path)
    before = (tmp_path / "cluster.yaml").read_bytes()
    again = says("cluster-keys", tmp_path, code=1)
    assert again[-1].endswith("cluster.yaml is there and is kept; name another folder.")
    assert (tmp_path / "cluster.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("url", "host", "fits"),
    [
        ("tcp://127.0.0.1:8786", "", True),
        ("tcp://[::1]:8786", "", True),
        ("tcp://127.0.0.1:8786", "0.0.0.0", False),
        ("tcp://192.0.2.7:8786", "", False),
        ("tcp://192.0.2.7:8786", "127.0.0.1", False),
        ("tls://192.0.2.7:8786", "", True),
    ],
)
def test_without_certificates_all_is_local(url: str, host: str, fits: bool) -> None:
    if fits:
        assert require_trust(url, "--insecure", host=host, insecure=False)
    else:
        with pytest.raises(ClusterError, match=r"could run code on this machine.* --insecure in a"):
            require_trust(url, "--insecure", host=host, insecure=False)
        assert require_trust(url, "--insecure", host=host, insecure=True)
