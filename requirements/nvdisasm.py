"""Put an nvdisasm that knows sm_70 beside this Python: what the throughput model reads machine code with.

PyPI has nvdisasm of CUDA 12 only inside triton's wheels; 3.6.0 is the last with one that reads sm_70. The wheel
itself is not installed: it would take the place of the triton that torch pins.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "triton==3.6.0"
MEMBER = "triton/backends/nvidia/bin/nvdisasm"
TARGET = Path(sys.prefix) / "bin" / "nvdisasm"


def main() -> None:
    """Download the wheel, take the one file, say where it is."""
    if TARGET.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*download, "-d", folder, WHEEL], check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            TARGET.write_bytes(wheel.read(MEMBER))
    TARGET.chmod(0o755)
    print(TARGET)


if __name__ == "__main__":
    main()
