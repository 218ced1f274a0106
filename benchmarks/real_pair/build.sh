#!/bin/sh
# Usage: build.sh TARGET DRAFT GSM8K DOLLY OUT [OPTION ...]
# The judges of the comparison in this folder, all from one set of responses: TARGET and DRAFT are model folders or Hub
# ids, GSM8K and DOLLY the presets gsm8k and dolly, or gsm8k=FILE and dolly=FILE. OPTIONs go to every `selfjudge build`.
#
#   OUT/autojudge        answer preservation, hidden state only (AutoJudge)
#   OUT/rejoin           the rejoin score, all features
#   OUT/rejoin-hidden    the rejoin score, hidden state only
#   OUT/paper            the paper's score and features
#   OUT/paper-features   the paper's score, all features
set -eu
target=$1 draft=$2 gsm8k=$3 dolly=$4 out=$5
shift 5
here=$(dirname "$0")
ask='{{ question }}

Think step by step, then finish with "The answer is N", where N is a number.'

build() {  # build FOLDER OPTION ...: unless that judge is there
    folder=$1
    shift
    [ -f "$out/$folder/config.json" ] || selfjudge build --out "$out/$folder" "$@"
}

copy() {  # copy FROM TO: another build's responses, mismatches and scores
    [ -d "$out/$2" ] && return
    mkdir -p "$out/$2.part"
    cp -r "$out/$1/build" "$out/$2.part/build"
    mv "$out/$2.part" "$out/$2"
}

build autojudge --target "$target" --draft "$draft" --prompts "$gsm8k?prompt=$ask:500" --prompts "$dolly:500" \
    --prompts "$here/code_prompts.jsonl:160" --lengths 0,5,10,20,40 --rejoin --length 20 --look-ahead 4 \
    --labels autojudge --feature-sets paper --seeds 1 "$@"
# noise control: three sampled completions after each substitution and as many of the unchanged text
copy autojudge rejoin
build rejoin --overwrite autojudge --labels score --suffix rejoin --length 40 --repeats 3 --autojudge-prompts 100 \
    --feature-sets paper,scalars,hidden+scalars,hidden+previous+scalars,hidden+previous+scalars+ahead --seeds 3 "$@"
copy rejoin rejoin-hidden
build rejoin-hidden --overwrite fit --feature-sets paper --seeds 1 "$@"
copy rejoin paper
build paper --overwrite label --suffix likelihood --length 20 --feature-sets paper --seeds 1 "$@"
copy paper paper-features
build paper-features --overwrite fit --feature-sets hidden+previous+scalars --seeds 1 "$@"
