"""Runs that are killed at random moments: what they leave, and whether the next run is right.

    python -m benchmarks.kills --kills 100 --terminations 50

A tiny model is gated under `-n 2`, on a cold cache and on one that earlier kills have half filled.
After each SIGKILL or SIGTERM files of the user's, in the cache folder too, must be as they were;
after every fifth a whole run must come to the verdicts of an undisturbed one, and leave nothing
temporary.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

from tests.plugin.projects import LLAMA, make_llama

FOREIGN = {"thesis/chapter.txt": "1", "tmp/notes.md": "2", "artifacts/mine": "3"}
EVERY = 5
LATEST = 9.0
"""Seconds after which a run of the tiny model is over."""


class Project:
    """A tiny model with a cache of its own, beside files of the user's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache, self.temporary = folder, folder / "cache", folder / "temporary"
        source = make_llama(folder / "mini.gguf")
        (folder / "shards.toml").write_text(LLAMA.format(source=source))
        self.temporary.mkdir()

    def plant(self) -> None:
        """Put files of the user's into a cache folder that is ours already."""
        for name, text in FOREIGN.items() if (self.cache / "CACHEDIR.TAG").exists() else ():
            (self.cache / name).parent.mkdir(parents=True, exist_ok=True)
            (self.cache / name).write_text(text)

    def start(self) -> subprocess.Popen[bytes]:
        """Start a run in a process group of its own."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            "--ane-shards=all",
            "-m",
            "gate",
        ]
        command += [
            f"--ane-cache={self.cache}",
            "--junitxml=verdicts.xml",
            "-p",
            "no:cacheprovider",
        ]
        env = {**os.environ, "TMPDIR": str(self.temporary)}
        return subprocess.Popen(
            command, cwd=self.folder, env=env, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def verdicts(self) -> list[tuple[str, ...]]:
        """What a whole run comes to: every property that is no time and no place."""
        assert self.start().wait() == 0
        cases = ElementTree.parse(self.folder / "verdicts.xml").iter("testcase")
        return sorted(
            (str(case.get("name")), *sorted(
                f"{p.get('name')}={p.get('value')}" for p in case.iter("property")
                if not str(p.get("name")).startswith("ane.provenance")
            ))
            for case in cases
        )  # fmt: skip

    def spoilt(self) -> list[str]:
        """Files of the user's that are not as they were planted."""
        files = {self.cache / name: text for name, text in FOREIGN.items()}
        planted = any(file.exists() for file in files)
        return [str(f) for f, text in files.items() if planted and (
            not f.exists() or f.read_text() != text)]  # fmt: skip

    def leftovers(self) -> list[str]:
        """Temporary files of ours; pytest keeps folders of its own."""
        inside = [*(self.cache / "tmp").glob("*")]
        outside = [p for p in self.temporary.iterdir() if not p.name.startswith("pytest-of-")]
        left = [str(path.relative_to(self.folder)) for path in (*inside, *outside)]
        return [name for name in left if name != "cache/tmp/notes.md"]


def main() -> int:
    """Kill runs, and print what went wrong; exit code 1 if anything did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--terminations", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, wrong = random.Random(options.seed), list[str]()
    signals = [signal.SIGKILL] * options.kills + [signal.SIGTERM] * options.terminations
    chance.shuffle(signals)
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder))
        expected = project.verdicts()
        for number, kind in enumerate(signals, 1):
            if number % (2 * EVERY) == 1:
                shutil.rmtree(project.cache)
            project.plant()
            run = project.start()
            time.sleep(chance.uniform(0.1, LATEST))
            send = os.killpg if chance.random() < 0.5 or kind == signal.SIGKILL else os.kill
            if run.poll() is None:
                send(run.pid, kind)
            run.wait()
            what = f"{number}: {kind.name}"
            if spoilt := project.spoilt():
                wrong.append(f"{what}: changed {', '.join(spoilt)}")
            if kind == signal.SIGTERM and (left := _settled(project)):
                wrong.append(f"{what}: left {', '.join(left)}")
            if number % EVERY == 0:
                if project.verdicts() != expected:
                    wrong.append(f"{what}: the next run has other verdicts")
                if left := project.leftovers():
                    wrong.append(f"{what}: left after the next run: {', '.join(left)}")
                print(f"{number} of {len(signals)}, wrong {len(wrong)}", flush=True)
    print(*wrong, f"{len(signals)} signals, {len(wrong)} wrong", sep="\n")
    return int(bool(wrong))


def _settled(project: Project) -> list[str]:
    """What is left a moment after the first process has ended, when its workers have, too."""
    for _ in range(40):
        if not (left := project.leftovers()):
            return []
        time.sleep(0.25)
    return left


if __name__ == "__main__":
    sys.exit(main())
