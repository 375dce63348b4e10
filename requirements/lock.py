"""Pin the extras of pyproject.toml: `make lock`, on Linux x86_64 with Python 3.11.

Each `requirements/<lock>.txt` is what pip resolves today for the dependencies and the named extras, without
local version labels, so that it installs from any index. node-workflow.txt is what a GPU node without network
lacks of it (node-image.txt), for `make wheelhouse`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
LOCKS = {
    "cpu": ["workflow", "dev", "tasks", "cpu"],
    "cuda12": ["workflow", "dev", "tasks", "cuda12"],
    "cuda13": ["workflow", "dev", "tasks", "cuda13"],
    "node-workflow": ["workflow"],
}
HEADER = "# Made by `make lock` from pyproject.toml (extras: {}). Do not edit.\n"


def resolve(requirements: list[str]) -> list[str]:
    """What pip would install for `requirements` in an empty environment, as sorted `name==version` lines."""
    command = [sys.executable, "-m", "pip", "install", "-qq", "--dry-run", "--ignore-installed", "--report", "-"]
    report = subprocess.run([*command, *requirements], check=True, stdout=subprocess.PIPE, text=True).stdout
    found = [item["metadata"] for item in json.loads(report)["install"]]
    return sorted(f"{m['name'].lower().replace('_', '-')}=={m['version'].split('+')[0]}" for m in found)


def package(requirement: str) -> str:
    return re.match(r"[A-Za-z0-9._-]+", requirement).group().lower()


def main(names: list[str]) -> None:
    """Write the named locks, or all of them."""
    image = {line for line in (HERE / "node-image.txt").read_text().splitlines() if not line.startswith("#")}
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    for name in names or LOCKS:
        extras = LOCKS[name]
        present = image if name.startswith("node-") else set()
        wanted = [*project["dependencies"], *(r for e in extras for r in project["optional-dependencies"][e])]
        found = resolve([r for r in wanted if package(r) not in present])
        lines = [line for line in found if package(line) not in present]
        (HERE / f"{name}.txt").write_text(HEADER.format(", ".join(extras)) + "\n".join(lines) + "\n")
        print(f"requirements/{name}.txt: {len(lines)} packages")


if __name__ == "__main__":
    main(sys.argv[1:])
