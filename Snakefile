"""voltabench: build -> measure -> collect -> figures, claims, notebooks -> report.

Every rule is one `voltabench` command. Without --configfile the config is the one for this machine; --config
run=... budget_min=... goes over either.
"""


include: "workflows/rules/common.smk"


report: "workflows/report/workflow.rst"


if workflow.is_main_process:
    or_stop(run.open_run, CONFIG)


onstart:
    or_stop(run.claim_run, CONFIG, workflow.local_exec)


include: "workflows/rules/build.smk"
include: "workflows/rules/measure.smk"
include: "workflows/rules/train.smk"
include: "workflows/rules/figures.smk"
include: "workflows/rules/report.smk"


rule all:
    default_target: True
    input:
        rules.results.input,
        rules.report.output,
    message:
        f"the run is in {RESULTS}"


if CONFIG.run == "smoke":

    rule smoke:
        input:
            rules.all.input,
        message:
            f"the run is in {RESULTS}"

else:

    rule smoke:
        log:
            "results/smoke/logs/run.log",
        conda:
            ENVIRONMENT
        params:
            config=f"{workflow.basedir}/config/smoke.yaml",
        message:
            "the smoke run, beside this machine's own"
        shell:
            "voltabench run {params.config:q} 2>&1 | tee {log}"
