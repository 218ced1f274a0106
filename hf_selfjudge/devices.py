"""Devices and dtypes by name, checked before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def named_device(name: str) -> torch.device:
    """A device that models can be on, whether or not it is here."""
    import torch

    try:
        found = torch.device(name)
    except RuntimeError:
        found = torch.device("meta")
    if found.type == "meta":
        raise ValueError(f"device is {name!r}, expected a torch device such as cpu, cuda or cuda:1.")
    return found


def named_dtype(name: str, also: str = "") -> torch.dtype:
    """A dtype that weights can have; `also` tells what else the caller takes."""
    import torch

    found = getattr(torch, name, None)
    if not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ValueError(f"dtype is {name!r}, expected {also}a torch dtype such as float32 or bfloat16.")
    return found


def usable_device(name: str) -> torch.device:
    """A device that is here."""
    import torch

    found = named_device(name)
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {name!r}, but no CUDA device can be used here; leave out --device.")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device is {name!r}, but there are {torch.cuda.device_count()} CUDA devices, from cuda:0 on.")
    return found
