"""From a pair of models and some prompts to a judge: respond, mine, score, label, fit, calibrate.

Stages share only the types of `records` and never import each other.
"""
