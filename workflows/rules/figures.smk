from harness.figures import FIGURES, FORMATS, caption, figures_of


rule model:
    input:
        config=CONFIG_FILE,
        records=rules.collect.output,
    output:
        report(
            f"{RESULTS}/model.csv", caption="../report/model.rst", category="Kernels"
        ),
    log:
        f"{RESULTS}/logs/model.log",
    conda:
        ENVIRONMENT
    params:
        kernels=run.kernel_hash(),
        model=run.model_hash(),
    message:
        "modelling the kernels"
    shell:
        "voltabench model {input.config} > {log} 2>&1"


rule figure:
    input:
        config=CONFIG_FILE,
        records=rules.collect.output,
        curves=lambda wildcards: (
            CURVES if wildcards.figure == "training_curves" else []
        ),
        trainings=lambda wildcards: (
            TRAININGS if wildcards.figure.startswith("sparse_training") else []
        ),
        model=lambda wildcards: (
            rules.model.output
            if wildcards.figure in ("model_bound", "attention_accumulators")
            else []
        ),
    output:
        report(
            f"{RESULTS}/figures/{{figure}}.svg",
            caption="../report/figure.rst",
            category="Figures",
        ),
        multiext(
            f"{RESULTS}/figures/{{figure}}",
            *(f".{suffix}" for suffix in (*FORMATS, "csv", "txt") if suffix != "svg"),
        ),
    log:
        f"{RESULTS}/logs/figures/{{figure}}.log",
    wildcard_constraints:
        figure="|".join(FIGURES),
    conda:
        ENVIRONMENT
    params:
        caption=lambda wildcards: caption(wildcards.figure),
        drawn_by=run.figures_hash(),
    message:
        "drawing {wildcards.figure}"
    shell:
        "voltabench figure {input.config} {wildcards.figure} > {log} 2>&1"


rule figures:
    input:
        expand(f"{RESULTS}/figures/{{figure}}.svg", figure=figures_of(CONFIG)),
    message:
        f"figures are in {RESULTS}/figures"
