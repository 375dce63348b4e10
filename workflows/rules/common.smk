# The run's config, and the `voltabench` that every rule calls.
import shlex
import sys

sys.path.insert(0, workflow.basedir)

from harness import workflow as run
from harness.errors import VoltabenchError


def or_stop(step, *args):
    """step(*args); a mistake that a user can mend is one line and exit code 2."""
    try:
        return step(*args)
    except VoltabenchError as error:
        print(f"voltabench: {error}", file=sys.stderr)
        sys.exit(2)


CONFIG = or_stop(run.resolve_config, config, workflow.configfiles)
RESULTS = str(CONFIG.results)
# What compiling and training take of the resource gpu: on a GPU's node they would disturb measuring.
EXCLUSIVE = int(CONFIG.device == "cuda")
CONFIG_FILE = f"{RESULTS}/config.yaml"
ENVIRONMENT = f"{workflow.basedir}/environment.yml"

# This Python, from any working folder; CUDA numbers the GPUs as NVML does.
shell.prefix(
    "set -euo pipefail; export CUDA_DEVICE_ORDER=PCI_BUS_ID; voltabench() {{ "
    f'PYTHONPATH={shlex.quote(str(workflow.basedir))}"${{{{PYTHONPATH:+:$PYTHONPATH}}}}" {shlex.quote(sys.executable)} -m harness "$@"; }}}}; '
)
