# First, and on a GPU's node alone: measuring would be disturbed, and a kernel that breaks its budget is not worth measuring.
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
    priority: 3
    conda:
        ENVIRONMENT
    resources:
        gpu=EXCLUSIVE,
    params:
        kernels=run.kernel_hash(),
    message:
        "compiling the kernels"
    shell:
        "voltabench build {input.config} --output {output} > {log} 2>&1"
