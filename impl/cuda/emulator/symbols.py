"""What the symbols of a compiled kernel tell: where its shared arrays are, which source line an instruction is."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

_SHIMS = Path(__file__).parent / "include"


def thread_local_arrays(library: Path) -> dict[str, tuple[int, int]]:
    """(offset, bytes) of each thread-local array, that is, of each shared one, by symbol."""
    arrays = {}
    for fields in map(str.split, _run(["readelf", "-sW", str(library)]).splitlines()):
        if len(fields) == 8 and fields[3] == "TLS":
            arrays[fields[7]] = (int(fields[1], 16), int(fields[2], 0))
    return arrays


def source_lines(library: Path, return_offsets: Iterable[int]) -> dict[int, str]:
    """`file:line` of the call that returns to each offset, followed by ` from ` and the line it is inlined into."""
    offsets = sorted(set(return_offsets))
    if not offsets:
        return {}
    # One paragraph per address, which starts with the address; inside it the innermost function comes first.
    output = _run(["addr2line", "-a", "-i", "-e", str(library), *(hex(offset - 1) for offset in offsets)])
    paragraphs = re.split(r"^0x[0-9a-f]+\n", output, flags=re.MULTILINE)[1:]
    return {offset: _places(text.splitlines()) for offset, text in zip(offsets, paragraphs, strict=True)}


def _places(lines: list[str]) -> str:
    paths = [Path(re.sub(r" \(discriminator \d+\)", "", line)) for line in lines]
    return " from ".join(path.name for path in [path for path in paths if path.parent != _SHIMS] or paths)


def _run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
