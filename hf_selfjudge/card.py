"""The README.md of a judge folder: what the judge is for, its operating points, and how to use it."""

from __future__ import annotations

from huggingface_hub import ModelCard, ModelCardData

from .config import JudgeConfig

TAGS = ["selfjudge", "speculative-decoding", "judge-decoding"]


def judge_card(config: JudgeConfig) -> ModelCard:
    """A card made of nothing but the judge's configuration."""
    models = {role: reference for role in ("target", "draft") if (reference := getattr(config, role)) is not None}
    data = ModelCardData(
        library_name="hf-selfjudge",
        tags=TAGS,
        base_model=[reference.id for reference in models.values()] or None,
    )
    pair = " and ".join(f"the {role} `{reference.id}`" for role, reference in models.items()) or "an unnamed pair"
    rows = [
        f"| `{name}`{' (default)' if name == config.default_threshold else ''} | {theta:.4f} | {1 - theta:.4f} |"
        for name, theta in sorted(config.thresholds.items())
    ]
    facts = [f"- {name}: {value}" for source in (config.labels, config.metrics) for name, value in source.items()]
    text = f"""---
{data}
---

# A judge for speculative decoding

A tiny classifier that also accepts draft tokens which keep the meaning, trained for {pair}. Decoding with it is not
identical to the target's own output; at theta = 1 it is.

```python
from hf_selfjudge import SelfJudgeVerifier

judge = SelfJudgeVerifier.from_pretrained("this folder or its Hub id")
out = target.generate(**inputs, assistant_model=draft, judge=judge)
```

| threshold | theta: accept if P(acceptable) is above | the paper's convention, 1 - theta |
| --- | ---: | ---: |
{chr(10).join(rows)}

- reads: {", ".join(config.features)}
{chr(10).join(facts)}
"""
    return ModelCard(text)
