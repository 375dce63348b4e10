rule build:
    input:
        config=CONFIG_FILE,
    output:
        report(
            f"{RESULTS}/resources.csv",
            caption="../report/resources.rst",
            category="Kernels",
        ),
    log:
        f"{RESULTS}/logs/build.log",
    conda:
        ENVIRONMENT
    params:
        kernels=run.kernel_hash(),
    message:
        "compiling the kernels"
    shell:
        "voltabench build {input.config} --output {output} > {log} 2>&1"
