"""A process with a judged engine over several tensor parallel ranks: prompts as JSON in, tokens and statistics out."""

import json
import sys


def main() -> None:
    from vllm import SamplingParams

    from hf_selfjudge.vllm import judged_llm

    asked = json.load(sys.stdin)
    llm = judged_llm(asked["target"], asked["draft"], asked["judge"], asked["gamma"], **asked["engine"])
    params = [SamplingParams(temperature=0.0, max_tokens=96, extra_args=extra) for extra in asked["extra_args"]]
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in asked["prompts"]], params, use_tqdm=False)
    found = {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "statistics": llm.collective_rpc("selfjudge_statistics"),
    }
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
