"""CUDA sources: built, launched, emulated on a CPU, modelled."""

# What a kernel's result and time on a GPU depend on, besides its own files: `sources` of a contender. A row is measured
# again when one of them changes, not when the emulator or the model does.
GPU_SOURCES = tuple(
    f"impl/cuda/{part}" for part in ("backend.py", "build.py", "include", "launch.py", "steps.py", "tensor_map.py")
)
