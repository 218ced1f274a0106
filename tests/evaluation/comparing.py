"""One small comparison, shared by the tests of its results and of its page."""

import gzip
import json

from hf_selfjudge.evaluation.settings import CompareSettings
from hf_selfjudge.evaluation.workers import BenchSettings

BENCH = BenchSettings("playground", "playground", gamma=4, batch_size=4)


WORDS, OPEN = "brief/word_problems", "brief/open_ended"


RULES = ("topk:2,ours=judge:playground@f1/1.0&floor:0.01+digits",)


SETTINGS = CompareSettings(BENCH, RULES, (f"{WORDS}:4,{OPEN}:2",), selection_items=2, resamples=200)


def point(results, rule):
    return next(found for found in results["points"] if found["rule"] == rule)


def stored(path):
    """What a file of answers holds."""
    return json.loads(gzip.decompress(path.read_bytes()))
