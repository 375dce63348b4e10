HEADLINE = [
    name for name in CONFIG.panel_names() if CONFIG.panel(*name.split("/")).headline
]


rule measure:
    input:
        config=CONFIG_FILE,
        todo=f"{RESULTS}/todo/{{panel}}.txt",
    output:
        f"{RESULTS}/panels/{{panel}}.parquet",
    log:
        f"{RESULTS}/logs/measure/{{panel}}.log",
    wildcard_constraints:
        panel="|".join(set(CONFIG.panel_names()) - set(HEADLINE)) or "(?!)",
    priority: 1  # one after another, they take longest
    conda:
        ENVIRONMENT
    resources:
        gpu=1,
    message:
        "measuring {wildcards.panel}"
    shell:
        "voltabench measure {input.config} {wildcards.panel} 2>&1 | tee {log}"


# The same, earlier: a time budget is spent on these first.
use rule measure as measure_headline with:
    wildcard_constraints:
        panel="|".join(HEADLINE) or "(?!)",
    priority: 2


CURVES = [f"{RESULTS}/curves.parquet"] if CONFIG.training_curves else []

if CURVES:

    rule curves:
        input:
            config=CONFIG_FILE,
        output:
            CURVES,
        log:
            f"{RESULTS}/logs/curves.log",
        conda:
            ENVIRONMENT
        resources:
            gpu=EXCLUSIVE,
        params:
            code=run.curves_hash(CONFIG),
        message:
            "training with each attention"
        shell:
            "voltabench curves {input.config} 2>&1 | tee {log}"


rule collect:
    input:
        config=CONFIG_FILE,
        panels=expand(f"{RESULTS}/panels/{{panel}}.parquet", panel=CONFIG.panel_names()),
    output:
        records=f"{RESULTS}/records.parquet",
        samples=f"{RESULTS}/samples.parquet",
    log:
        f"{RESULTS}/logs/collect.log",
    conda:
        ENVIRONMENT
    message:
        "collecting the records"
    shell:
        "voltabench collect {input.config} > {log} 2>&1"
