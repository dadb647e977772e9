"""What a model can do, read from the model that was built: never from its name."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from reference_trainer.config import ConfigError


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """An empty reason says that the model can."""

    linear_attention: bool
    """Some layers carry a recurrent state along the sequence."""
    sliding_window: int | None
    """Positions that windowed layers look back at; None without such layers."""
    tied_head: bool
    """The language-model head is the embedding matrix."""
    max_positions: int
    """Longest sequence, prompt and response together."""
    takes_images: bool
    """A vision tower is there; `config.image_token_id` stands for its features in a row of tokens."""
    experts: int
    """Experts that a router chooses from, in each layer that has them; 0 for a dense model."""
    why_not_packed: str
    """Why two samples can't share a row with positions that start again."""
    why_left_padding_differs: str
    """Why left padding moves log-probs by more than rounding."""

    @property
    def mixture_of_experts(self) -> bool:
        return self.experts > 0


def read_capabilities(model: PreTrainedModel) -> Capabilities:
    """Look at the layer types, the modules and the weights."""
    text = model.config.get_text_config()
    layer_types = set(getattr(text, "layer_types", None) or [])
    linear = "linear_attention" in layer_types
    return Capabilities(
        linear_attention=linear,
        sliding_window=text.sliding_window if "sliding_attention" in layer_types else None,
        tied_head=model.get_output_embeddings().weight is model.get_input_embeddings().weight,
        max_positions=text.max_position_embeddings,
        takes_images=vision_tower(model) is not None,
        experts=expert_count(model),
        why_not_packed=("its linear-attention state runs on from one sample of a row into the next" if linear else ""),
        why_left_padding_differs=(
            "it moves the chunks in which the linear-attention state is computed, in float32" if linear else ""
        ),
    )


def require_packable(model: PreTrainedModel) -> None:
    """Raise ConfigError with the reason when samples can't be packed into one row."""
    reason = read_capabilities(model).why_not_packed
    if reason:
        raise ConfigError(f"{type(model).__name__} can't train on packed samples: {reason}; use one sample a row")


def vision_tower(model: nn.Module) -> nn.Module | None:
    """The part of a policy, or of its backbone, that reads pixels; None in a model of text alone."""
    backbone = getattr(model, "model", model)
    towers = (getattr(backbone, name, None) for name in ("visual", "vision_tower"))
    return next((tower for tower in towers if tower is not None), None)


def expert_count(model: nn.Module) -> int:
    """Experts of the layer that has most; they are one parameter of three dimensions, `(experts, out, in)`."""
    weights = (getattr(module, "down_proj", None) for module in model.modules())
    return max((len(one) for one in weights if isinstance(one, nn.Parameter) and one.dim() == 3), default=0)
