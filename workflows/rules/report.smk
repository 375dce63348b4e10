from harness.notebooks import NOTEBOOKS

# One for each op.
RUN_NOTEBOOKS = [name for name in NOTEBOOKS if name in CONFIG.ops]


rule claims:
    input:
        config=CONFIG_FILE,
        records=rules.collect.output,
        trainings=TRAININGS,
    output:
        report(
            f"{RESULTS}/claims.csv", caption="../report/claims.rst", category="Claims"
        ),
    log:
        f"{RESULTS}/logs/claims.log",
    conda:
        ENVIRONMENT
    params:
        judged_by=run.claims_hash(),
    message:
        "judging the claims"
    shell:
        "voltabench claims {input.config} > {log} 2>&1"


rule notebook:
    input:
        config=CONFIG_FILE,
        records=rules.collect.output,
        curves=lambda wildcards: (
            CURVES if wildcards.notebook == "training_step" else []
        ),
        trainings=lambda wildcards: (
            TRAININGS if wildcards.notebook == "sparse_training_step" else []
        ),
    output:
        f"{RESULTS}/notebooks/{{notebook}}.ipynb",
        report(
            f"{RESULTS}/notebooks/{{notebook}}.html",
            caption="../report/notebook.rst",
            category="Notebooks",
        ),
    log:
        f"{RESULTS}/logs/notebooks/{{notebook}}.log",
    conda:
        ENVIRONMENT
    params:
        shown_by=lambda wildcards: run.notebook_hash(wildcards.notebook),
    message:
        "executing the notebook {wildcards.notebook}"
    shell:
        "voltabench notebook {input.config} {wildcards.notebook} > {log} 2>&1"


rule results:
    input:
        rules.build.output,
        rules.model.output,
        rules.figures.input,
        rules.claims.output,
        expand(f"{RESULTS}/notebooks/{{notebook}}.ipynb", notebook=RUN_NOTEBOOKS),
    message:
        f"the results are in {RESULTS}"


rule report:
    input:
        rules.results.input,
        config=CONFIG_FILE,
    output:
        f"{RESULTS}/report.zip",
    log:
        f"{RESULTS}/logs/report.log",
    conda:
        ENVIRONMENT
    message:
        "writing the report"
    shell:
        "voltabench report {input.config} > {log} 2>&1"
