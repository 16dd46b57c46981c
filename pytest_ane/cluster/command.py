"""`pytest-ane worker`: let this machine build and measure for runs with --ane-cluster."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

from pytest_ane.cli.options import add_shared
from pytest_ane.cli.output import Output, write
from pytest_ane.mlprogram.errors import ClusterError

EXAMPLE = "pytest-ane worker tcp://10.0.0.7:8786"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The scheduler, and what the machine gives."""
    parser.add_argument("scheduler", metavar="URL", help="of Dask's scheduler, which is started "
                        "with: dask scheduler")  # fmt: skip
    parser.add_argument(
        "--builds", "--ane-builds", type=int, metavar="N",
        help="processes that build and run shards on the CPU executor (default: as many as memory "
             "holds at 3 GB each, at most one a core); 0 for a Mac's Neural Engine alone",
    )  # fmt: skip
    add_shared(parser, "cache")
    parser.add_argument("--store", "--ane-store", metavar="URL",
                        help="the store that machines share (default: the run's)")  # fmt: skip
    parser.add_argument(
        "--folder", type=Path, default=Path(), metavar="DIR",
        help="the checkout, where the manifest's weights and packages are (default: this one)",
    )  # fmt: skip
    parser.add_argument("--host", metavar="ADDRESS", help="listen there (default: at this "
                        "machine's address by which the scheduler is reached)")  # fmt: skip
    parser.add_argument("--insecure", action="store_true", help="listen without certificates, in "
                        "a network that is all yours: who reaches this machine's ports runs code "
                        "on it")  # fmt: skip
    parser.add_argument("--preload", action="append", default=[], metavar="MODULE",
                        help="import this first in each process, as with dask worker")  # fmt: skip


def run(options: argparse.Namespace) -> Output:
    """Take part until the scheduler ends, or Ctrl-C; `ClusterError` where that is not possible."""
    from pytest_ane.make.cache import default_root
    from pytest_ane.make.disk import default_builds, require_cache
    from pytest_ane.make.shared_store import check_url

    builds = default_builds() if options.builds is None else options.builds
    try:
        from pytest_ane.cluster._worker import Offer, machine_with_ane, serve
        from pytest_ane.cluster.tasks import WorkerSetup
        from pytest_ane.cluster.workers import check_scheduler, require_trust
    except ImportError as error:
        raise ClusterError(
            f"A worker needs {error.name or 'Dask'}; run: pip install 'pytest-ane[cluster]'"
        ) from None
    if builds < 0:
        raise ClusterError(f"--builds={builds}: give 0 or more.")
    check_scheduler(options.scheduler)
    address = require_trust(
        options.scheduler, "--insecure", host=options.host or "", insecure=options.insecure
    )
    if not options.folder.is_dir():
        raise ClusterError(f"--folder={options.folder} is no folder; give the checkout's.")
    if options.store:
        check_url(options.store)
    require_cache((options.cache or default_root()).absolute())
    folder, host = options.folder.absolute(), socket.gethostname()
    setup = WorkerSetup(host, folder, options.cache, options.store)
    preload, mac = tuple(options.preload), machine_with_ane()
    offer = Offer(options.scheduler, address, builds, mac, setup, preload)
    if not offer.builds and offer.mac is None:
        raise ClusterError("--builds=0: there is no Neural Engine here, so nothing would be done.")
    yield str(offer)
    serve(offer, lambda: write(f"connected to {offer.url}; Ctrl-C ends"))
    return None
