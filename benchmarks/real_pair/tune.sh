#!/bin/sh
# Usage: tune.sh TARGET DRAFT JUDGES DATA DOLLY [OPTION ...]
# Judges of build.sh and the scalars of the verification forward, weighed in the decoding loop. DATA holds the rows of
# split.py, DOLLY is the preset dolly, or dolly=FILE. OPTIONs go to every `selfjudge tune`.
#
#   JUDGES/tuned-questions   on 1,200 GSM8K and 600 MMLU prompts
#   JUDGES/tuned             on these and on 800 + 500 others, 200 instructions, 160 code prompts and 200 articles
set -eu
target=$1 draft=$2 judges=$3 data=$4 dolly=$5
shift 5
here=$(dirname "$0")
problem='{{ question }}

Think step by step, then finish with "The answer is N", where N is a number.'
question='The following is a multiple-choice question about {{ subject | replace("_", " ") }}.

{{ question }}

{% for choice in choices %}
{{ "ABCDEFGHIJ"[loop.index0] }}. {{ choice }}
{% endfor %}

Think step by step, then finish with "The answer is (X)", where X is the letter of the right choice.'
article='{{ article }}

Summarize this article in three or four short sentences.'

tune() {  # tune FOLDER OPTION ...
    folder=$1
    shift
    selfjudge tune --target "$target" --draft "$draft" \
        --judges "$judges/rejoin,$judges/autojudge,$judges/paper-features" --rule floor:0.02+digits --rollouts 4 \
        --gamma 20 --max-new-tokens 512 --max-prompt-tokens 1100 --out "$judges/$folder" "$@"
}

tune tuned-questions --prompts "gsm8k=$data/gsm8k-build.jsonl.gz?prompt=$problem:1200" \
    --prompts "mmlu=$data/mmlu-build.jsonl.gz?prompt=$question:600" "$@"
tune tuned --with "$judges/tuned-questions" --prompts "gsm8k=$data/gsm8k-selection.jsonl.gz?prompt=$problem:800" \
    --prompts "mmlu=$data/mmlu-selection.jsonl.gz?prompt=$question:500" --prompts "$dolly:200" \
    --prompts "$here/code_prompts.jsonl:160" --prompts "$data/cnn-build.jsonl.gz?prompt=$article:200" "$@"
