"""How figures look: one colour, hatch and marker per contender, sizes and fonts.

Colours are Okabe and Ito's, which colour-blind readers can tell apart. Contenders that share a kernel family share a
colour and differ by hatch. Importing this module does not import matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COLUMN, PAGE = 3.35, 7.0  # widths of a figure, inches

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE = "#999999", "#DDDDDD"

RC = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 7.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": PALE,
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "figure.dpi": 200,  # as saved, or text is measured at one size and drawn at another
    "savefig.dpi": 200,
    "pdf.fonttype": 42,  # TrueType, embedded
    "svg.fonttype": "path",
    "svg.hashsalt": "voltabench",
}


@dataclass(frozen=True)
class Look:
    """How one contender is drawn, everywhere."""

    label: str
    colour: str
    hatch: str
    marker: str
    ours: bool

    @property
    def bar(self) -> dict[str, object]:
        """Keyword arguments of a bar or a box."""
        return {"facecolor": self.colour, "hatch": self.hatch, "edgecolor": BLACK, "linewidth": 0.8 * self.ours + 0.2}

    @property
    def line(self) -> dict[str, object]:
        """Keyword arguments of a line with markers; a hatch becomes a dashed line and open markers."""
        return {
            "color": self.colour,
            "linestyle": "--" if self.hatch else "-",
            "linewidth": 1.8 if self.ours else 1.0,
            "marker": self.marker,
            "markerfacecolor": "white" if self.hatch else self.colour,
            "markeredgecolor": self.colour if self.hatch else BLACK,
            "markeredgewidth": 0.9 if self.hatch else 0.4,
            "zorder": 4 if self.ours else 3,
        }

    @property
    def point(self) -> dict[str, object]:
        """Keyword arguments of markers without a line."""
        return {**self.line, "linestyle": ""}

    @property
    def stroke(self) -> dict[str, object]:
        """Keyword arguments of a line without markers."""
        return {**self.line, "marker": ""}


# Drawn in this order: controls, baselines, then ours.
_REGISTRY: dict[str, tuple[str, str, str]] = {
    "unfused_fp16": (GREY, "", "s"),
    "sdpa_math": (GREY, "////", "s"),
    "sdpa_masked": (GREY, "....", "s"),
    "sdpa_efficient": (GREEN, "", "^"),
    "xformers": (GREEN, "////", "^"),
    "flex_attention": (YELLOW, "", "D"),
    "sdpa_flash": (SKY, "", "v"),
    "sdpa_dense_flash": (SKY, "....", "v"),
    "flash_attn": (SKY, "////", "v"),
    "flash_attn_3": (BLUE, "", "P"),
    "flash_attn_4": (BLUE, "////", "P"),
    "sdpa_cudnn": (ORANGE, "", "X"),
    "sdpa_dense_cudnn": (ORANGE, "....", "X"),
    "cublas": (GREY, "", "s"),
    "pytorch_fp16": (GREY, "", "s"),
    "cusparse_csr": (SKY, "", "v"),
    "semi_structured": (GREEN, "", "^"),
    "sputnik": (YELLOW, "", "D"),
    "sparta": (BLUE, "", "P"),
    "triton_bsr": (ORANGE, "", "X"),
    "spark_attention": (VERMILLION, "", "o"),
    "spark_attention_sm70": (VERMILLION, "....", "d"),
    "spark_attention_sm80": (VERMILLION, "xxxx", "p"),
    "spark_attention_fp16acc": (VERMILLION, "////", "o"),
    "flash_llm_tiled_csl": (VERMILLION, "", "o"),
    "flash_llm_bitmap": (PURPLE, "", "h"),
    "flash_llm_two_of_four": (BLACK, "", "*"),
    "sat_block_sparse": (VERMILLION, "", "o"),
    "dense": (GREY, "", "s"),
    "dense_map": (GREY, "////", "s"),
    "dense_monitor": (GREY, "....", "X"),
    "dense_flash": (SKY, "", "v"),
    "window": (GREEN, "", "^"),
    "bigbird": (GREEN, "////", "^"),
    "spion": (BLUE, "", "P"),
    "sat": (VERMILLION, "", "o"),
    "sat_csr": (VERMILLION, "////", "o"),
}
_PLACE = {name: place for place, name in enumerate(_REGISTRY)}
_EXTRA = [
    (colour, hatch, marker)
    for hatch, marker in (("\\\\\\\\", "<"), ("++++", ">"), ("xxxx", "p"), ("oo", "d"))
    for colour in (PURPLE, YELLOW, BLACK, GREEN, BLUE, ORANGE)
]
_ROLES = ("control", "baseline", "ours")


def looks(roles: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, Look]:
    """The look of each contender, in drawing order.

    `roles` maps every contender of the run to its role. A contender that is not in the registry takes the next free
    extra in the order of the names, so its look depends on the run's contenders and not on their order.
    """
    ordered = sorted(roles, key=lambda name: (_ROLES.index(roles[name]), _PLACE.get(name, len(_PLACE)), name))
    extra = {name: _EXTRA[i % len(_EXTRA)] for i, name in enumerate(sorted(roles.keys() - _REGISTRY.keys()))}
    return {
        name: Look(labels.get(name, name), *(_REGISTRY.get(name) or extra[name]), ours=roles[name] == "ours")
        for name in ordered
    }
