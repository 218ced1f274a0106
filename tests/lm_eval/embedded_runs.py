"""Evaluations through lm_eval's Python API on the embedded pair, each run once."""

import functools

from hf_selfjudge.playground import ASSETS

TASKS = ["selfjudge_playground_word_problems", "selfjudge_playground_multiple_choice"]
PAIR = "pretrained=playground,assistant=playground,dtype=float32"
JUDGE = f"{PAIR},judge=playground,threshold=f1,never_relax=digits"


def evaluate(model_args, *, model="selfjudge", tasks=TASKS, metadata=None, **options):
    """Results of `simple_evaluate` with our tasks only: finding lm_eval's own takes many seconds."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from hf_selfjudge.lm_eval import EVAL_TASKS, register

    register()
    found = simple_evaluate(
        model=model,
        model_args=model_args,
        tasks=list(tasks),
        task_manager=TaskManager(
            include_defaults=False,
            include_path=str(EVAL_TASKS),
            metadata={"items": 6} if metadata is None else metadata,
        ),
        device="cpu",
        apply_chat_template=True,
        bootstrap_iters=0,
        **{"batch_size": 5, **options},
    )
    assert found is not None
    return found


def responses(results, task=TASKS[0]):
    """The responses of a task in the order of its documents."""
    return [sample["resps"][0][0] for sample in sorted(results["samples"][task], key=lambda sample: sample["doc_id"])]


@functools.cache
def remembered(name):
    """One of the runs that several tests look at."""
    if name == "hf":
        return evaluate(f"pretrained={ASSETS / 'target'},dtype=float32", model="hf")
    return evaluate(PAIR if name == "exact" else JUDGE)
