# A run with a time budget measures and trains nothing: a training has no part that would do.
TRAININGS = expand(
    f"{RESULTS}/training/{{training}}/run.json",
    training=CONFIG.trainings if CONFIG.budget_min is None else [],
)


# One run goes on where it was stopped. It is kept until its settings change: nothing else is worth hours of training.
rule train:
    output:
        f"{RESULTS}/training/{{training}}/run.json",
    log:
        f"{RESULTS}/logs/training/{{training}}.log",
    wildcard_constraints:
        training="|".join(CONFIG.trainings) or "(?!)",
    # On a GPU last of all; else beside measuring, as figures, claims and a notebook wait for it.
    priority: -EXCLUSIVE
    conda:
        ENVIRONMENT
    resources:
        gpu=EXCLUSIVE,
    params:
        options=lambda wildcards: CONFIG.trainings[wildcards.training],
        device=CONFIG.device,
        results=subpath(output[0], ancestor=2),
    message:
        "training {wildcards.training}"
    shell:
        "voltabench train {params.options} --device {params.device} --results {params.results} 2>&1 | tee {log}"
