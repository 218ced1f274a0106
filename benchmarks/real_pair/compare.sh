#!/bin/sh
# Usage: compare.sh TARGET DRAFT JUDGES DATA GAMMA OUT [OPTION ...]
# The rules on the real pair, on five benchmarks, in blocks of GAMMA (of 10 or more: with more judges). JUDGES is what
# build.sh and tune.sh made, DATA holds the benchmarks' rows as jsonl files (the names are below). OPTIONs go to
# `selfjudge compare`.
set -eu
target=$1 draft=$2 judges=$3 data=$4 gamma=$5 out=$6
shift 6
tuned="tuned=judge:$judges/tuned"
rules="topk:2,topk:3,ensemble:0.8,typical:0.3:0.5477,margin:0.2,kl:0.4,reverse-kl:0.4,fly:0.3:5"
rules="$rules,floor with guard=floor:0.3/0.2+digits,autojudge=judge:$judges/autojudge@0.877041"
rules="$rules,paper=judge:$judges/paper@recall/f1"
rules="$rules,$tuned@accept-40%&floor:0.1+digits,$tuned@accept-60%/accept-75%&floor:0.2+digits"
if [ "$gamma" -ge 10 ]; then
    questions="tuned on questions=judge:$judges/tuned-questions"
    rules="$rules,reverse-kl with guard=reverse-kl:1.5+digits,paper with guard=judge:$judges/paper@f1&floor:0.02+digits"
    rules="$rules,rejoin with guard=judge:$judges/rejoin@0.28042/0.156229&floor:0.03+digits"
    rules="$rules,$questions@accept-30%/accept-40%&floor:0.02+digits,$questions@accept-40%/accept-50%&floor:0.1+digits"
    rules="$rules,$questions@accept-60%/accept-75%&floor:0.2+digits"
fi
exec selfjudge compare --target "$target" --draft "$draft" --gamma "$gamma" --rules "$rules" --ours tuned \
    --select-on test --criterion indistinguishable --max-new-tokens 512 --max-prompt-tokens 1100 \
    --tasks "lm_eval/gsm8k=$data/gsm8k-test.jsonl.gz:1319,lm_eval/math500=$data/math500-test.jsonl.gz:500" \
    --tasks "lm_eval/mmlu_cot=$data/mmlu-test.jsonl.gz:1500,lm_eval/humaneval=$data/humaneval-test.jsonl.gz:164" \
    --tasks "lm_eval/cnn_dailymail_rouge=$data/cnn_dailymail-test1000.jsonl.gz:410" \
    --out "$out" "$@"
