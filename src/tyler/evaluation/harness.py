"""Tyler models in EleutherAI's lm-evaluation-harness: importing this module makes `model="tyler"` known to it.

`python -m tyler.evaluation.harness` is the harness's own command line with that done. Every answer is decoded by our
engine, with operators; every likelihood is of visible tokens alone, without them (see `TylerLM`).
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm

from tyler.config.sizes import bytes_of, positions_at_once
from tyler.engine.request import FinishEvent, Request
from tyler.engine.routing import Never, Router
from tyler.engine.sampling import Sampling, seed_of
from tyler.evaluation.command import LONGEST_WAIT
from tyler.evaluation.options import Answering
from tyler.model import Tyler
from tyler.tasks.prompts import written_turns

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.utils import simple_parse_args_string
except ImportError as error:
    raise ImportError(
        f"tyler.evaluation.harness needs lm-evaluation-harness ({error}); pip install 'path/to/tyler[lm-eval]'"
    ) from error

logger = logging.getLogger(__name__)

SLOTS = Answering.slots
"""Answers decoded at once by default."""

GENERATION_SETTINGS = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")


@register_model("tyler")
class TylerLM(HFLM):
    """A Tyler model as the harness sees one: our engine answers, with operators; the harness's code scores, without.

    `generate_until` decodes all its contexts with continuous batching. A context is read unmodified: with
    `apply_chat_template` it holds the chat template's tokens, else it is plain text. Greedy unless the task samples;
    `max_gen_toks` counts actions (visible tokens and operator calls). A context that leaves no room for them loses its
    left end.

    `loglikelihood(x, y)` is the sum over the tokens of y of log p(y_t | x, y_<t), where p is the policy's distribution
    over V: its logits (the backbone's, with eta after Stage 2) with every operator masked, softmaxed in float32, over a
    context without latents. That is decoding with budget 0, or under the router Never; before Stage 2 it is the
    backbone's own likelihood. No router or budget changes it.
    """

    def __init__(
        self,
        pretrained: str | Tyler,
        router: str | Router | None = None,
        budget: int | None = None,
        max_new_tokens: int = 256,
        batch_size: int | str | None = None,
        dtype: str = "auto",
        device: str | None = None,
        backbone: str | None = None,
        seed: int = Answering.seed,
        memory: int | str | None = None,
    ) -> None:
        """Load a model, or take a loaded one.

        `pretrained`, `backbone`, `dtype` and `device` are those of `Tyler.from_pretrained`; a process of `accelerate
        launch` uses its own device. `router` is a Router, or learned, never, boundaries, boundaries:RATE; None is what
        the model's last stage trained for. `budget` caps the operator calls of each answer. `max_new_tokens` is for
        tasks without `max_gen_toks` (the harness's default is 256). `batch_size` is how many answers are decoded at
        once, by default or as "auto" 32; it changes speed and memory, not results. `seed` is for tasks that sample.
        `memory` bounds the bytes of context and caches of what is generated, as 4GB.
        """
        check_whole_numbers(budget=budget, max_new_tokens=max_new_tokens, seed=seed)
        self.slots = slots_of(batch_size)
        state = PartialState(cpu=not torch.cuda.is_available(), timeout=LONGEST_WAIT)
        if isinstance(pretrained, str):
            own = str(state.device) if state.num_processes > 1 else device
            pretrained = Tyler.from_pretrained(pretrained, backbone=backbone, dtype=dtype, device=own)
        loaded = pretrained.backbone
        super().__init__(
            loaded.model,
            backend="causal",
            tokenizer=copy.deepcopy(loaded.tokenizer),  # which gets a token for padding
            max_length=loaded.max_positions,
            batch_size="auto",
        )
        self._rank, self._world_size = state.process_index, state.num_processes
        if state.num_processes > 1:
            self.accelerator = Accelerator(cpu=not torch.cuda.is_available())
        self.router = pretrained.routed(router)
        self.budget, self.max_new_tokens, self.seed = budget, max_new_tokens, seed
        self.memory = None if memory is None else bound_of(memory)
        calls = budget != 0 and not isinstance(self.router, Never)
        self.tyler = pretrained if calls else pretrained.with_heads({})  # what is never called needs no room

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> TylerLM:
        """A model from `--model_args`; they win over what the harness adds (batch_size, device).

        Raises ValueError for an argument that there is not, and without `pretrained`.
        """
        allowed = list(inspect.signature(cls).parameters)
        if unknown := [name for name in arg_dict if name not in allowed]:
            raise ValueError(f"model_args: {', '.join(unknown)} is unknown; allowed are {', '.join(allowed)}")
        if "pretrained" not in arg_dict:
            raise ValueError("model_args needs pretrained=MODEL: a saved model, a run, a backbone's folder or Hub id")
        added = {name: value for name, value in (additional_config or {}).items() if name in allowed}
        if str(added.get("device")).startswith("cuda") and not torch.cuda.is_available():
            del added["device"]  # the harness's command line says cuda:0 by default
        return cls(**added | dict(arg_dict))

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Mapping[str, Any] | None = None) -> TylerLM:
        """A model from `pretrained=RUN,router=learned,budget=5`."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    # -- what the harness asks about a model -----------------------------------------------------------------------

    @property
    def max_gen_toks(self) -> int:
        return self.max_new_tokens

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The turns in the tokenizer's chat template, thinking as the model's own prompt has it."""
        thinking = self.tyler.prompt.thinking
        return written_turns(self.tokenizer, chat_history, thinking, answered=not add_generation_prompt)

    def get_model_info(self) -> dict[str, Any]:
        """What the harness writes beside its results: which weights answered, and under which setting."""
        return {
            "model_num_parameters": self.tyler.backbone.model.num_parameters(),
            "model_dtype": str(self.tyler.backbone.dtype),
            "model_sha": self.tyler.fingerprint(),
            "stage": self.tyler.stage,
            "router": repr(self.router),
            "budget": self.budget,
        }

    # -- answers ---------------------------------------------------------------------------------------------------

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text that follows each context, up to the first stop string. Raises ValueError for a setting not known.

        Contexts that come more than once (`repeats`) are sampled with different seeds.
        """
        prepared, seen = [], Counter[str]()
        for instance in requests:
            context, settings = instance.args
            prepared.append(self.request(context, settings, repeat=seen[context]))
            seen[context] += 1
        texts: dict[int, str] = {}
        events = self.tyler.shared_engine.events(prepared, slots=self.slots, memory=self.memory, streamed=False)
        hidden = disable_tqdm or self.rank != 0
        with tqdm(total=len(prepared), desc="Running generate_until requests", disable=hidden) as bar:
            for event in events:
                if isinstance(event, FinishEvent):
                    texts[event.index] = event.trajectory.text
                    self.cache_hook.add_partial("generate_until", requests[event.index].args, event.trajectory.text)
                    bar.update()
        return [texts[index] for index in range(len(prepared))]

    def request(self, context: str, settings: Mapping[str, Any], repeat: int = 0) -> Request:
        """What the engine is asked for one context and a task's `generation_kwargs`."""
        known = normalize_gen_kwargs(dict(settings), self.max_new_tokens)
        if unknown := [name for name in known if name not in GENERATION_SETTINGS]:
            raise ValueError(
                f"the task's generation_kwargs set {', '.join(unknown)}, which Tyler does not know; "
                f"allowed are {', '.join(GENERATION_SETTINGS)}"
            )
        return Request(
            prompt_ids=self._fit(self.tok_encode(context) or [self.prefix_token_id], known["max_gen_toks"]),
            router=self.router,
            sampling=Sampling(
                temperature=float(known.get("temperature", 0.0)),
                top_k=int(known.get("top_k", 0)),
                top_p=float(known.get("top_p", 1.0)),
                seed=seed_of(self.seed, context, repeat),
            ),
            budget=self.budget,
            max_new_tokens=known["max_gen_toks"],
            stop=tuple(stop for stop in known["until"] if stop),
        )

    def _fit(self, ids: list[int], max_gen_toks: int) -> list[int]:
        """The end of a context that leaves room for an answer, or all of it."""
        longest = max((head.num_latents for head in self.tyler.heads.values()), default=1)
        room = self.max_length - max_gen_toks - (longest - 1)  # the engine keeps room for one whole operator call
        if room < 1:
            raise ValueError(
                f"max_gen_toks={max_gen_toks} leaves no room for a context in the {self.max_length} positions of this "
                "model; ask for fewer, with --gen_kwargs max_gen_toks=N or the model argument max_new_tokens"
            )
        if len(ids) > room:
            logger.warning("a context of %d tokens is cut to its last %d to fit the model", len(ids), room)
        return ids[-room:]

    # -- likelihoods -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _model_call(
        self, inps: Int[Tensor, "batch seq"], attn_mask: None = None, labels: None = None
    ) -> Float[Tensor, "batch seq vocab"]:
        """The policy's logits over V; padding is on the right, where nothing sees it."""
        embeds = self.tyler.backbone.embed(inps)
        hidden = self.tyler.policy.decoder(inputs_embeds=embeds, use_cache=False).last_hidden_state
        return self.tyler.policy.token_logits(hidden)

    def _detect_batch_size(self, requests: Sequence[Any] | None = None, pos: int = 0) -> int:
        """Texts scored at once: as many as have logits of a bounded size, by the longest of them, which comes first."""
        longest = sum(map(len, requests[pos][1:])) if requests else self.max_length
        return max(1, positions_at_once(self.tyler.backbone.vocab_size) // min(longest, self.max_length))


def bound_of(memory: int | str) -> int:
    """A bound in bytes. Raises ValueError for an invalid size."""
    try:
        return bytes_of(memory)
    except ValueError as error:
        raise ValueError(f"memory={error}") from None


def slots_of(batch_size: int | str | None) -> int:
    """The harness's batch size as a number of slots; "auto" is 32: answers do not depend on it."""
    text = str(SLOTS if batch_size is None else batch_size)
    if text.startswith("auto"):
        return SLOTS
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"batch_size={batch_size!r}; it must be 1 or more, or 'auto'")
    return int(text)


def check_whole_numbers(**arguments: int | None) -> None:
    """Raise ValueError for an argument that `--model_args` did not turn into a whole number of 0 or more."""
    for name, value in arguments.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise ValueError(f"{name}={value!r}; it must be a whole number, 0 or more")


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
