"""What `make gate-all` leaves of the whole default model, which tests need not gate again."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock

from tests.forked import Forge

ROOT = Path(__file__).parents[1]
_STEM = ROOT / "build/gate-all"
COMMAND = ("pytest", "--ane-shards=all", "-m", "gate", "-p", "no:cacheprovider")


def gate_all(forge: Forge, ending: str) -> Path:
    """Its JUnit file or report by the name's ending; made now where the code is newer."""
    file = _STEM.with_suffix(ending)
    _STEM.parent.mkdir(exist_ok=True)
    with FileLock(f"{_STEM}.lock"):
        if not _is_of_today(file):
            reports = [f"--ane-report={_STEM}{each}" for each in (".html", ".jsonl")]
            done = forge.run([*COMMAND, f"--junitxml={_STEM}.xml", *reports], ROOT)
            assert done.returncode == 0, done.stdout
    return file


def _is_of_today(file: Path) -> bool:
    """Whether it was made by the code that is tested, of the manifest as it is."""
    files = (ROOT / "pytest_ane").rglob("*.*")
    code = (*(f for f in files if f.parent.name != "__pycache__"), *(ROOT / "gates").glob("*.py"))
    newest = max(each.stat().st_mtime for each in (*code, ROOT / "shards.toml"))
    return file.exists() and file.stat().st_mtime > newest
