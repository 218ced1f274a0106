"""Judges on the Hugging Face Hub: their cards, pushing and loading them, and the `custom_generate` code beside them.

`card`, `measured`, `handwritten` and `download` know only a judge's config and stand below `judge.py`; `push` stands
above it.
"""
