"""Everything that can be wrong with a call, found before any forward."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel

from ..config import MODES, JudgeConfig, ModelReference
from ..engine.suitability import why_not_ragged
from ..lm_head import head_width, output_head
from ..rules import JudgeRule, NeverRelax, Rule
from ..rules.base import _Combination

STATEFUL_PROCESSORS = frozenset(
    {"UnbatchedClassifierFreeGuidanceLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor"}
)
"""Processors that expect to be called once per emitted token, which no speculative method can promise."""

ROW_BOUND_PROCESSORS = frozenset(
    {
        "PrefixConstrainedLogitsProcessor",
        "EncoderRepetitionPenaltyLogitsProcessor",
        "EncoderNoRepeatNGramLogitsProcessor",
    }
)
"""Processors that go by a row's place in the batch, or hold the batch's prompts; rows are processed one by one."""

PLAIN_INPUTS = frozenset({"attention_mask", "past_key_values", "use_cache", "logits_to_keep", "position_ids"})
"""What transformers hands over for a call with nothing but token ids."""

OTHER_METHODS = ("penalty_alpha", "dola_layers", "force_words_ids", "constraints")
"""Options of `generate` that choose other decoding methods."""

_warned: set[tuple[str, str]] = set()


def check_mode(mode: str) -> None:
    """Refuse an unknown mode."""
    if mode not in MODES:
        raise ValueError(f"judge_mode is {mode!r}, expected one of {', '.join(MODES)}.")


def check_target(model: PreTrainedModel) -> None:
    """Refuse targets that judge decoding cannot verify with."""
    if model.config.is_encoder_decoder:
        raise ValueError(
            f"{type(model).__name__} is an encoder-decoder model; judge decoding works with decoder-only targets. "
            "Leave out judge=."
        )
    if getattr(model, "_is_stateful", False):
        raise ValueError(f"{type(model).__name__} keeps a state that cannot be rolled back; leave out judge=.")
    output_head(model)


def check_judge(model: PreTrainedModel, draft: PreTrainedModel | None, rule: Rule | None, strict_pair: bool) -> None:
    """Refuse a judge that does not fit the target; warn once (or refuse) if it was trained for another pair."""
    for config in _judges(rule):
        width = head_width(model)
        if config.hidden_size != width:
            raise ValueError(
                f"The judge was trained on hidden states of size {config.hidden_size}, but the lm_head of "
                f"{type(model).__name__} reads {width}. Use a judge trained for this target."
            )
        for role, reference, used in (("target", config.target, model), ("draft", config.draft, draft)):
            if reference is not None and used is not None:
                _check_identity(role, reference, used.name_or_path or f"an unnamed {type(used).__name__}", strict_pair)


def check_drafter(
    model: PreTrainedModel,
    draft: PreTrainedModel | None,
    config: GenerationConfig,
    rule: Rule | None,
    tokenizers: tuple[Any, Any],
) -> None:
    """Refuse calls without a drafter, with one of another vocabulary, or with one the rule cannot work with."""
    lookup = config.prompt_lookup_num_tokens is not None
    if draft is None and not lookup and config.assistant_early_exit is None and not getattr(config, "use_mtp", False):
        raise ValueError(
            "judge= needs something that drafts: pass assistant_model=, prompt_lookup_num_tokens=, "
            "assistant_early_exit= or use_mtp=True."
        )
    # greedy candidates that are re-encoded from another tokenizer carry no distribution over the target's vocabulary
    reencoded = None not in tokenizers and not same_vocabulary(*tokenizers) and not config.do_sample
    if rule is not None and rule.needs_draft_logits and (lookup or reencoded):
        drafter = "prompt lookup" if lookup else "a draft with another tokenizer"
        raise ValueError(
            f"The rule {rule} reads the draft's logits, and {drafter} has none. Use assistant_model= with the target's "
            "tokenizer, or a rule or judge without draft features."
        )
    if draft is None:
        return
    if draft.config.is_encoder_decoder:
        raise ValueError(f"The draft {type(draft).__name__} is an encoder-decoder model, expected a decoder-only one.")
    sizes = [m.config.get_text_config().vocab_size for m in (model, draft)]
    if sizes[0] != sizes[1] and None in tokenizers:
        raise ValueError(
            f"The target has {sizes[0]} tokens in its vocabulary and the draft {sizes[1]}. Pass tokenizer= and "
            "assistant_tokenizer=: with equal tokenizers (only the padding differs) drafting works directly, with "
            "different ones candidates are re-encoded."
        )


def check_call(
    input_ids: Tensor, config: GenerationConfig, processors: LogitsProcessorList, model_kwargs: dict[str, Any]
) -> None:
    """Refuse generation settings that judge decoding does not do."""
    if config.num_beams > 1:
        raise ValueError(
            f"num_beams is {config.num_beams}; judge decoding works with num_beams=1 (greedy or sampling)."
        )
    others = [name for name in OTHER_METHODS if getattr(config, name, None) is not None]
    if others:
        raise ValueError(f"{', '.join(others)} asks for another decoding method; leave it out, or leave out judge=.")
    if input_ids.shape[1] == 0 or model_kwargs.get("inputs_embeds") is not None:
        raise ValueError("judge= needs input_ids with at least one token; inputs_embeds cannot be shared with a draft.")
    if not model_kwargs.get("use_cache", True):
        raise ValueError("judge decoding requires use_cache=True.")
    cache = model_kwargs.get("past_key_values")
    if cache is None or (getattr(cache, "is_compileable", False) and config.cache_implementation != "static"):
        raise ValueError(
            f"judge decoding makes its own static caches, found {type(cache).__name__}. Leave out past_key_values and "
            "ask for cache_implementation='static', or give a dynamic cache."
        )
    mask = model_kwargs.get("attention_mask")
    length, known = input_ids.shape[1], cache.get_seq_length()
    if known >= length or (mask is not None and mask.shape[1] != length):
        raise ValueError(
            f"input_ids has {length} tokens, past_key_values holds {known}: give the whole text as input_ids (and "
            "attention_mask), of which the cache holds only a first part."
        )
    if getattr(config, "assistant_ensemble_weight", None) is not None:
        raise ValueError(
            "assistant_ensemble_weight and judge= are both acceptance rules; use judge='ensemble:W' alone."
        )
    if input_ids.shape[0] > 1:
        check_batch(config, processors, model_kwargs)
    if config.output_attentions or config.output_hidden_states:
        raise ValueError(
            "judge= does not return attentions or hidden states; leave out output_attentions/hidden_states."
        )
    stateful = [type(p).__name__ for p in processors if type(p).__name__ in STATEFUL_PROCESSORS]
    if stateful:
        raise ValueError(f"{', '.join(stateful)} must see each emitted token once; it cannot be used with judge=.")


def check_batch(config: GenerationConfig, processors: LogitsProcessorList, model_kwargs: dict[str, Any]) -> None:
    """Refuse what works with one sequence only."""
    extra = other_inputs(model_kwargs)
    if extra:
        raise ValueError(
            f"The batch has other inputs than token ids ({', '.join(extra)}), which judge decoding takes for one "
            "sequence at a time."
        )
    bound = [type(p).__name__ for p in processors if type(p).__name__ in ROW_BOUND_PROCESSORS]
    if bound:
        raise ValueError(f"{', '.join(bound)} works with judge= for one sequence at a time, not for a batch.")
    if config.return_dict_in_generate and (config.output_scores or config.output_logits):
        raise ValueError("output_scores and output_logits are returned for one sequence at a time, not for a batch.")
    if model_kwargs["past_key_values"].get_seq_length() > 0:
        raise ValueError("A batch of several sequences cannot start from a given past_key_values; leave it out.")


def other_inputs(model_kwargs: dict[str, Any]) -> list[str]:
    """What a call has beside token ids and what follows from them."""
    given = {name for name, value in model_kwargs.items() if value is not None}
    return sorted(given - PLAIN_INPUTS) + (["position_ids"] if _own_positions(model_kwargs) else [])


def _own_positions(model_kwargs: dict[str, Any]) -> bool:
    """Whether position_ids are others than the places of the tokens in their text."""
    given, mask = model_kwargs.get("position_ids"), model_kwargs.get("attention_mask")
    if given is None:
        return False
    if mask is None:
        mask = torch.ones(given.shape[-2:], dtype=torch.long, device=given.device)
    if given.shape[-1] != mask.shape[-1]:
        return True
    usual = (mask.cumsum(-1) - 1).expand_as(given)
    return bool(((given != usual) & mask.bool().expand_as(given)).any())


def check_ragged(*models: PreTrainedModel | None) -> None:
    """Refuse models that cannot hold rows of different length in one cache."""
    for model in models:
        if model is None:
            continue
        reason = why_not_ragged(model)
        if reason is not None:
            raise ValueError(
                f"{reason}, so that rows of different length cannot share a cache; decode one sequence at a time."
            )


def left_padding(input_ids: Tensor, attention_mask: Tensor | None) -> list[int]:
    """How many padding tokens precede each row's prompt; padding anywhere else is refused."""
    if attention_mask is None:
        return [0] * input_ids.shape[0]
    mask = attention_mask.bool()
    padding = (~mask).sum(dim=1)
    expected = torch.arange(mask.shape[1], device=mask.device)[None] >= padding[:, None]
    if not bool((mask == expected).all()) or not bool(mask[:, -1].all()):
        raise ValueError(
            "attention_mask has zeros behind the prompt's start; pad prompts on the left (padding_side='left')."
        )
    return padding.tolist()


def same_vocabulary(tokenizer: Any, other: Any) -> bool:
    """Whether two tokenizers give every text the same ids, so that the draft's ids are the target's."""
    return tokenizer is other or tokenizer.get_vocab() == other.get_vocab()


def _judges(rule: Rule | None) -> list[JudgeConfig]:
    """The configs of all judges inside a rule."""
    if isinstance(rule, JudgeRule):
        return [rule.verifier.config]
    if isinstance(rule, NeverRelax):
        return _judges(rule.rule)
    if isinstance(rule, _Combination):
        return [config for part in rule.rules for config in _judges(part)]
    return []


def _check_identity(role: str, reference: ModelReference, found: str, strict: bool) -> None:
    if reference.names(found):
        return
    message = (
        f"This judge was trained for the {role} {reference.id!r}, but the {role} here is {found!r}: its thresholds may "
        "not hold. Train a judge for this pair, or pass strict_pair=True to make this an error."
    )
    if strict:
        raise ValueError(message.replace(", or pass strict_pair=True to make this an error", " (strict_pair=True)"))
    if (reference.id, found) not in _warned:
        _warned.add((reference.id, found))
        warnings.warn(message, UserWarning, stacklevel=2)
