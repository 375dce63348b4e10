"""Clock, power and temperature of the card through the run, with what slowed it."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.figures.panels import below, page
from harness.figures.run import Run
from harness.figures.style import BLUE, GREY, VERMILLION

TITLE = "State of the card through the run"
READINGS = {"sm_clock_mhz": "SM clock, MHz", "power_w": "power, W", "temperature_c": "temperature, °C"}
LONGEST_PAUSE = 2.0  # minutes; a run that was resumed the next day would else be two dots
_PAUSE = {"color": GREY, "linestyle": ":", "linewidth": 1.0}
# Thousands of points: as a picture in the vector formats, a tenth of the bytes.
_FREE = {"linestyle": "", "marker": ".", "color": BLUE, "markersize": 2, "rasterized": True}


def table(run: Run) -> pd.DataFrame:
    columns = ["started_at", "experiment", "panel", "case_id", "contender", "status", *READINGS, "throttled"]
    rows = run.records[columns].sort_values(["started_at", *columns[1:5]], kind="stable").reset_index(drop=True)
    start = pd.to_datetime(rows["started_at"], utc=True, format="ISO8601")
    return rows.assign(minutes=(start - start.min()).dt.total_seconds() / 60)


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    if rows[list(READINGS)].notna().any(axis=None):
        return None
    where = "this run was on a CPU, which has no NVML" if run.on_cpu else "NVML gave none"
    return f"no clock, power or temperature: {where}"


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    panels = [(label, rows) for label in READINGS.values()]
    figure, cells = page(panels, run, TITLE, columns=3, xlabel="minutes")
    steps = rows["minutes"].diff().fillna(0.0)
    at = steps.clip(upper=LONGEST_PAUSE).cumsum()
    pauses = at[steps > LONGEST_PAUSE] - LONGEST_PAUSE / 2
    slowed = ~rows["throttled"].fillna("none").isin(["", "none"])
    for (ax, _), column in zip(cells, READINGS, strict=True):
        ax.plot(at[~slowed], rows[column][~slowed], **_FREE)
        ax.plot(at[slowed], rows[column][slowed], **{**_FREE, "color": VERMILLION})
        for pause in pauses:
            ax.axvline(pause, **_PAUSE)
    handles = [Line2D([], [], label="not throttled", **{**_FREE, "markersize": 6})]
    if slowed.any():
        reasons = ", ".join(sorted(set(rows.loc[slowed, "throttled"])))
        handles.append(Line2D([], [], label=f"throttled: {reasons}", **{**_FREE, "color": VERMILLION, "markersize": 6}))
    if not pauses.empty:
        label = f"nothing measured for over {LONGEST_PAUSE:g} minutes, drawn as {LONGEST_PAUSE:g}"
        handles.append(Line2D([], [], label=label, **_PAUSE))
    below(figure, handles)
    return figure
