rule claims:
    input:
        config=CONFIG_FILE,
        records=rules.collect.output,
    output:
        report(
            f"{RESULTS}/claims.csv", caption="../report/claims.rst", category="Claims"
        ),
    log:
        f"{RESULTS}/logs/claims.log",
    conda:
        ENVIRONMENT
    message:
        "judging the claims"
    shell:
        "voltabench claims {input.config} > {log} 2>&1"


rule report:
    input:
        rules.build.output,
        rules.figures.input,
        rules.claims.output,
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
