from harness.figures import FIGURES, FORMATS
from harness.notebooks import NOTEBOOKS


rule figure:
    input:
        config=CONFIG_FILE,
        records=rules.collect.output,
    output:
        report(
            f"{RESULTS}/figures/{{figure}}.svg",
            caption="../report/{figure}.rst",
            category="Figures",
        ),
        multiext(
            f"{RESULTS}/figures/{{figure}}",
            *(f".{suffix}" for suffix in (*FORMATS, "csv", "txt") if suffix != "svg"),
        ),
    log:
        f"{RESULTS}/logs/figures/{{figure}}.log",
    conda:
        ENVIRONMENT
    wildcard_constraints:
        figure="|".join(FIGURES),
    message:
        "drawing {wildcards.figure}"
    shell:
        "{VOLTABENCH} figure {input.config} {wildcards.figure} > {log} 2>&1"


rule figures:
    input:
        expand(f"{RESULTS}/figures/{{figure}}.svg", figure=FIGURES),
