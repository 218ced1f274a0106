#!/bin/sh
# Usage: tune.sh TARGET DRAFT JUDGES DATA [OPTION ...]
# The judge JUDGES/tuned: judges of build.sh and the scalars of the verification forward, weighed in the decoding loop on
# 1,200 GSM8K and 600 MMLU prompts of DATA (the build rows of split.py). OPTIONs go to `selfjudge tune`.
set -eu
target=$1 draft=$2 judges=$3 data=$4
shift 4
problem='{{ question }}

Think step by step, then finish with "The answer is N", where N is a number.'
question='The following is a multiple-choice question about {{ subject | replace("_", " ") }}.

{{ question }}

{% for choice in choices %}
{{ "ABCDEFGHIJ"[loop.index0] }}. {{ choice }}
{% endfor %}

Think step by step, then finish with "The answer is (X)", where X is the letter of the right choice.'
exec selfjudge tune --target "$target" --draft "$draft" \
    --judges "$judges/rejoin,$judges/autojudge,$judges/paper-features" \
    --prompts "gsm8k=$data/gsm8k-build.jsonl.gz?prompt=$problem:1200" \
    --prompts "mmlu=$data/mmlu-build.jsonl.gz?prompt=$question:600" \
    --rule floor:0.02+digits --rollouts 4 --gamma 20 --max-new-tokens 512 --max-prompt-tokens 1100 \
    --out "$judges/tuned" "$@"
