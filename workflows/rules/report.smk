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
        "{VOLTABENCH} claims {input.config} > {log} 2>&1"
