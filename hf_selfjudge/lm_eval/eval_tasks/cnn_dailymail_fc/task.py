"""What the YAML names. lm_eval imports this first, which makes `--model selfjudge` known to it."""

from hf_selfjudge.lm_eval import register
from hf_selfjudge.lm_eval.data import load
from hf_selfjudge.lm_eval.response import ratio_of_sums
from hf_selfjudge.lm_eval.scorers import score_rouge
from hf_selfjudge.lm_eval.scorers import score_summary as score

register()

__all__ = ["load", "ratio_of_sums", "score", "score_rouge"]
