"""The methods' names and what figures call them, without torch."""

from __future__ import annotations

LABELS = {
    "dense": "dense, materialised",
    "dense_map": "dense, map returned",
    "dense_monitor": "dense, published monitor",
    "dense_flash": "dense, SDPA flash",
    "sat": "SAT",
    "sat_csr": "SAT, element CSR",
    "spion": "SPION-CF",
    "window": "sliding window",
    "bigbird": "BigBird",
    "linformer": "Linformer",
    "performer": "Performer",
    "nystromformer": "Nystromformer",
    "reformer": "Reformer",
}
