#!/bin/sh
# Usage: compare.sh TARGET DRAFT JUDGES DATA OUT [OPTION ...]
# All rules on the real pair: points chosen on GSM8K training and MMLU validation rows, tested on five benchmarks.
# JUDGES is what build.sh made, DATA holds the benchmarks' rows as jsonl files (the names are below). OPTIONs go to
# `selfjudge compare`; such as --test none first, to see what the selection items say.
set -eu
target=$1 draft=$2 judges=$3 data=$4 out=$5
shift 5
free='topk:2/3,floor:0.3/0.1/0.03,typical:0.3:0.5477,typical:0.09:0.3,typical:0.02:0.1414,margin:0.2/0.5/0.8'
free="$free,kl:0.1/0.4/1.5,reverse-kl:0.1/0.4/1.5,ensemble:0.8/0.6/0.4,fly:0:5,fly:0.3:5,fly:0.3:2"
guarded='floor with guard=floor:0.1/0.03/0.01+digits,typical with guard=typical:0.09:0.3+digits'
guarded="$guarded,typical with guard=typical:0.02:0.1414+digits"
learned="autojudge=judge:$judges/autojudge@sweep,paper=judge:$judges/paper@recall/f1,paper=judge:$judges/paper@sweep"
learned="$learned,paper labels=judge:$judges/paper-features@sweep,rejoin hidden=judge:$judges/rejoin-hidden@sweep"
learned="$learned,rejoin=judge:$judges/rejoin@sweep,rejoin with guard=judge:$judges/rejoin@sweep+digits"
for judge in rejoin follow hybrid; do
    learned="$learned,$judge with guard and floor=judge:$judges/$judge@sweep&floor:0.03+digits"
done
exec selfjudge compare --target "$target" --draft "$draft" --gamma 20 --rules "$free,$guarded,$learned" \
    --shares 0.2,0.4,0.6,0.8 \
    --ours 'rejoin with guard' --max-new-tokens 512 --max-prompt-tokens 1100 \
    --selection-tasks "lm_eval/gsm8k=$data/gsm8k-selection.jsonl.gz:250,lm_eval/mmlu_cot=$data/mmlu-validation.jsonl.gz:150" \
    --tasks "lm_eval/gsm8k=$data/gsm8k-test.jsonl.gz:1319,lm_eval/math500=$data/math500-test.jsonl.gz:500" \
    --tasks "lm_eval/mmlu_cot=$data/mmlu-test.jsonl.gz:1500,lm_eval/humaneval=$data/humaneval-test.jsonl.gz:164" \
    --tasks "lm_eval/cnn_dailymail_rouge=$data/cnn_dailymail-test1000.jsonl.gz:300" \
    --out "$out" "$@"
