"""Fair comparison of acceptance rules: the same prompts for all, scores beside accepted lengths, intervals, a verdict.

`compare` is the whole; `grammar` says which rules, `providers` which prompts. Nothing that it uses knows of it.
"""
