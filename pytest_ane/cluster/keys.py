"""`pytest-ane cluster-keys`: write the key by which a cluster's machines know each other."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_ane.cli.output import Output
from pytest_ane.mlprogram.errors import ClusterError

EXAMPLE = "pytest-ane cluster-keys ~/.config/ane-cluster"
_ROLES = ("scheduler", "worker", "client")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder that the key is written to."""
    words = "a folder that nobody else reads (default: cluster-keys)"
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path("cluster-keys"), metavar="DIR", help=words
    )


def run(options: argparse.Namespace) -> Output:
    """Write a key and its certificate as Dask's configuration; `ClusterError` where one is."""
    try:
        import yaml
        from distributed.security import Security

        made = Security.temporary()
    except ImportError as error:
        raise ClusterError(
            f"Certificates need {error.name or 'cryptography'}; run: pip install "
            "'pytest-ane[cluster]'"
        ) from None
    file = options.folder.absolute() / "cluster.yaml"
    pair = {"key": made.tls_worker_key, "cert": made.tls_worker_cert}
    tls = {"ca-file": made.tls_ca_file, **{role: pair.copy() for role in _ROLES}}
    comm = {"require-encryption": True, "tls": tls}
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.touch(mode=0o600, exist_ok=False)
        file.write_text(yaml.safe_dump({"distributed": {"comm": comm}}), encoding="utf-8")
    except FileExistsError:
        raise ClusterError(f"{file} is there and is kept; name another folder.") from None
    except OSError as error:
        raise ClusterError(f"{file} cannot be written: {error.strerror}.") from None
    yield f"wrote {file}, for a year: who has it is a member, and may run code on every machine"
    yield f"on each machine, with a copy of it: export DASK_CONFIG={file}"
    yield "then: dask scheduler --protocol tls, and tls:// in place of tcp:// wherever it is named"
    return {"file": file}
