"""Collect the wheels that a GPU node without network lacks: `make wheelhouse`, on a machine with network.

Each requirements/node-<set>.txt becomes wheelhouse/<set>, small enough to travel on its own. On the node:

    python3 -m pip install --no-index --no-deps --target <folder> wheelhouse/workflow/*.whl
    PYTHONPATH=<folder> python3 -m harness run config/h200.yaml

flash-attn-4 is left out (its compiler alone is over 90 MB): there that contender is `unavailable`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
WHEELHOUSE = HERE.parent / "wheelhouse"
PYTHON = "3.12"
NEWEST_GLIBC = 39  # 2.39: pip takes only the tags it is told, so all older ones are listed too
TAGS = ["manylinux2014_x86_64", *(f"manylinux_2_{minor}_x86_64" for minor in range(5, NEWEST_GLIBC + 1))]
WITHOUT_WHEEL = ("connection-pool",)  # pure Python, on PyPI as a source archive only: its wheel is made here


def collect(requirements: Path, folder: Path) -> None:
    """Fill `folder` with the wheels of `requirements`, and nothing that they depend on."""
    shutil.rmtree(folder, ignore_errors=True)
    lines = [line for line in requirements.read_text().splitlines() if not line.startswith("#")]
    pip = [sys.executable, "-m", "pip"]
    sources = [line for line in lines if line.partition("==")[0] in WITHOUT_WHEEL]
    wheels = [line for line in lines if line not in sources]
    tags = [option for tag in TAGS for option in ("--platform", tag)]
    target = ["--python-version", PYTHON, *tags, "--only-binary", ":all:"]
    subprocess.run([*pip, "download", "-qq", "--no-deps", *target, "-d", folder, *wheels], check=True)
    if sources:
        subprocess.run([*pip, "wheel", "-qq", "--no-deps", "-w", folder, *sources], check=True)


def main() -> None:
    """Fill wheelhouse/ and say how large each set is."""
    for requirements in sorted(HERE.glob("node-*.txt")):
        name = requirements.stem.removeprefix("node-")
        if name == "image":
            continue
        collect(requirements, WHEELHOUSE / name)
        size = sum(wheel.stat().st_size for wheel in (WHEELHOUSE / name).glob("*.whl"))
        print(f"wheelhouse/{name}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
