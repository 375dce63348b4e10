rule build:
    input:
        config=CONFIG_FILE,
    output:
        f"{RESULTS}/resources.csv",
    params:
        kernels=run.kernel_hash(),
    log:
        f"{RESULTS}/logs/build.log",
    conda:
        ENVIRONMENT
    message:
        "compiling the kernels"
    shell:
        "{VOLTABENCH} build {input.config} --output {output} > {log} 2>&1"
