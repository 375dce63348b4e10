from harness.figures import FIGURES, FORMATS, caption, figures_of


rule model:
    input:
        config=CONFIG_FILE,
        # Of a CPU there are none of a kernel's time to compare with, and the model need not wait.
        records=rules.collect.output if CONFIG.device == "cuda" else [],
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


DRAWN = figures_of(CONFIG)
# Beside the records.
DRAWN_FROM = {
    "training_step": CURVES,
    "sparse_training_step": TRAININGS,
    "model": rules.model.output,
}

# Those that wait for the same by one command: to start Python and matplotlib takes as long as a figure.
for group, names in DRAWN.items():

    rule:
        name:
            f"figures_of_{group}"
        input:
            DRAWN_FROM.get(group, []),
            config=CONFIG_FILE,
            records=rules.collect.output,
        output:
            [
                report(
                    f"{RESULTS}/figures/{name}.svg",
                    caption=f"../report/{name}.rst",
                    category="Figures",
                )
                for name in names
            ],
            expand(
                f"{RESULTS}/figures/{{name}}.{{suffix}}",
                name=names,
                suffix=[*(form for form in FORMATS if form != "svg"), "csv", "txt"],
            ),
        log:
            f"{RESULTS}/logs/figures/{group}.log",
        conda:
            ENVIRONMENT
        params:
            names=names,
            captions=[caption(name) for name in names],
            drawn_by=run.figures_hash(),
        message:
            f"drawing {', '.join(names)}"
        shell:
            "voltabench figure {input.config} {params.names} > {log} 2>&1"


rule figures:
    input:
        expand(f"{RESULTS}/figures/{{name}}.svg", name=sum(DRAWN.values(), [])),
    message:
        f"figures are in {RESULTS}/figures"
