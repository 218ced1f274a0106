"""A process that starts engines which must be refused, and prints each one's error. Settings as JSON on stdin."""

import json
import sys


def main() -> None:
    from vllm import LLM

    for options in json.load(sys.stdin):
        version = options.pop("pretend_version", None)
        if version is not None:
            import vllm

            vllm.__version__ = version
        try:
            LLM(worker_cls="hf_selfjudge.vllm.SelfJudgeWorker", **options)
            message = "not refused"
        except (ValueError, RuntimeError) as error:
            message = str(error)
        print("RESULT " + json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
