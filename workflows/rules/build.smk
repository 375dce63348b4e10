rule build:
    input:
        config=CONFIG_FILE,
    output:
        f"{RESULTS}/resources.csv",
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
