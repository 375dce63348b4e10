"""voltabench: build -> measure -> collect -> figures, claims, notebooks -> report.

Every rule is one `voltabench` command. Without --configfile the config is the one for this machine; --config
run=... budget_min=... goes over either.
"""

import os
import shlex
import sys
from pathlib import Path

sys.path.insert(0, workflow.basedir)
os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # CUDA's numbers are then NVML's

from harness import workflow as run
from harness.errors import VoltabenchError


def or_stop(step, *args):
    """step(*args); a mistake a user can mend is one line and exit code 2."""
    try:
        return step(*args)
    except VoltabenchError as error:
        print(f"voltabench: {error}", file=sys.stderr)
        sys.exit(2)


CONFIG = or_stop(run.resolve_config, config, " + ".join(map(str, workflow.configfiles)))
RESULTS = str(CONFIG.results)
CONFIG_FILE = f"{RESULTS}/config.yaml"
VOLTABENCH = f"{shlex.quote(sys.executable)} -m harness"
ENVIRONMENT = f"{workflow.basedir}/environment.yml"

if workflow.is_main_process:
    or_stop(run.open_run, CONFIG)


onstart:
    or_stop(run.claim_run, CONFIG, workflow.local_exec)


include: "workflows/rules/build.smk"
include: "workflows/rules/measure.smk"
include: "workflows/rules/figures.smk"
include: "workflows/rules/report.smk"


rule all:
    default_target: True
    input:
        rules.build.output,
        rules.figures.input,
        rules.claims.output,
        NOTEBOOKS,
